import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.math.BigDecimal;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executors;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

/** Serves GET /v1/customers/{card}/balance from the local store, with the HTTP server of the JDK. */
final class BalanceServer {
    private static final int THREADS = 8;

    private final KafkaStreams streams;

    BalanceServer(KafkaStreams streams) {
        this.streams = streams;
    }

    void start(int port) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
        server.createContext("/v1/customers/", this::balance);
        server.setExecutor(Executors.newFixedThreadPool(THREADS));
        server.start();
    }

    private void balance(HttpExchange exchange) throws IOException {
        String[] path = exchange.getRequestURI().getPath().split("/");
        Account account;
        try {
            account = accounts().get(path[3]);
        } catch (InvalidStateStoreException error) {
            answer(exchange, 503, "{\"title\":\"not ready\"}");
            return;
        }
        if (account == null) {
            answer(exchange, 404, "{\"title\":\"no such customer\"}");
            return;
        }
        answer(exchange, 200, "{\"CustomerCardNo\":\"" + path[3] + "\",\"TotalLoyaltyPoints\":\""
                + BigDecimal.valueOf(account.points(), 2) + "\",\"Sequence\":" + account.sequence() + "}");
    }

    private ReadOnlyKeyValueStore<String, Account> accounts() {
        return streams.store(StoreQueryParameters.fromNameAndType(
                LoyaltyTopology.ACCOUNTS, QueryableStoreTypes.keyValueStore()));
    }

    private static void answer(HttpExchange exchange, int status, String body) throws IOException {
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().set("Content-Type", "application/json");
        exchange.sendResponseHeaders(status, bytes.length);
        exchange.getResponseBody().write(bytes);
        exchange.close();
    }
}
