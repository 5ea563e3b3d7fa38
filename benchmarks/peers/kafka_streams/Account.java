import java.nio.ByteBuffer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** The points of a customer in hundredths, and the number of invoices that they include. */
record Account(long points, long sequence) {
    static final Account EMPTY = new Account(0, 0);

    Account with(long earned) {
        return new Account(points + earned, sequence + 1);
    }

    static Serde<Account> serde() {
        return Serdes.serdeFrom(
                (topic, account) -> account == null ? null : ByteBuffer.allocate(2 * Long.BYTES)
                        .putLong(account.points).putLong(account.sequence).array(),
                (topic, bytes) -> {
                    if (bytes == null) {
                        return null;
                    }
                    ByteBuffer buffer = ByteBuffer.wrap(bytes);
                    return new Account(buffer.getLong(), buffer.getLong());
                });
    }
}
