import java.nio.file.Path;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;

/** The main class of the peer. Its settings are system properties. SIGTERM ends the process. */
public final class App {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, System.getProperty("application.id"));
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, System.getProperty("bootstrap.servers"));
        properties.put(StreamsConfig.STATE_DIR_CONFIG, System.getProperty("state.dir"));
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, System.getProperty("processing.guarantee"));
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, Runtime.getRuntime().availableProcessors());
        properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        LoyaltyTopology topology =
                new LoyaltyTopology(new Wire(Path.of(System.getProperty("schemas"))), System.getProperty("prefix"));
        KafkaStreams streams = new KafkaStreams(
                topology.build(Boolean.getBoolean("fan-out"), Boolean.getBoolean("loyalty"),
                        Boolean.getBoolean("drop-repeats")),
                properties);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        Integer port = Integer.getInteger("http.port");
        if (port != null) {
            new BalanceServer(streams).start(port);
        }
    }
}
