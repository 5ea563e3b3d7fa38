import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.generic.GenericRecordBuilder;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/** The branches of the pipeline in the DSL of Kafka Streams, with processors for what the DSL cannot express. */
final class LoyaltyTopology {
    static final String ACCOUNTS = "accounts";
    private static final String SEEN = "seen";
    private static final BigDecimal FACTOR = new BigDecimal("0.02");
    private static final int PARTITIONS = 3;
    private static final List<String> OF_INVOICE = List.of(
            "InvoiceNumber", "CreatedTime", "StoreID", "PosID", "CustomerType", "PaymentMethod", "DeliveryType",
            "OriginalInvoiceNumber", "TotalAmount");
    private static final List<String> OF_ADDRESS = List.of("City", "State", "PinCode");
    private static final List<String> OF_ITEM =
            List.of("ItemCode", "ItemDescription", "ItemPrice", "ItemQty", "TotalValue");

    private final Wire wire;
    private final String prefix;

    LoyaltyTopology(Wire wire, String prefix) {
        this.wire = wire;
        this.prefix = prefix;
    }

    /** @param dropRepeats whether to drop duplicates with a window store of nine days, as in Confluent's tutorial. */
    Topology build(boolean fanOut, boolean loyalty, boolean dropRepeats) {
        StreamsBuilder builder = new StreamsBuilder();
        ThreadLocal<Wire.Codec> codecs = ThreadLocal.withInitial(() -> wire.codec("PosInvoice"));
        KStream<byte[], CheckedInvoice> checked = builder
                .stream(prefix + "pos-invoices", Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .mapValues(value -> CheckedInvoice.of(value, codecs.get()));
        Map<String, KStream<byte[], CheckedInvoice>> branches = checked.split(Named.as("checked-"))
                .branch((key, value) -> value.isValid(), Branched.as("valid"))
                .defaultBranch(Branched.as("broken"));
        KStream<byte[], CheckedInvoice> valid = branches.get("checked-valid");
        if (dropRepeats) {
            Duration horizon = Duration.ofDays(9);
            builder.addStateStore(Stores.windowStoreBuilder(
                    Stores.persistentWindowStore(SEEN, horizon, horizon, false), Serdes.String(), Serdes.Long()));
            valid = valid.processValues(() -> new FirstOfEach(horizon), SEEN);
        }
        if (fanOut) {
            fanOut(valid, branches.get("checked-broken"));
        }
        if (loyalty) {
            loyalty(builder, valid);
        }
        return builder.build();
    }

    private void fanOut(KStream<byte[], CheckedInvoice> valid, KStream<byte[], CheckedInvoice> broken) {
        valid.filter((store, value) -> value.isHomeDelivery())
                .mapValues(CheckedInvoice::invoice)
                .to(prefix + "shipment", Produced.with(Serdes.ByteArray(), wire.serde("PosInvoice")));
        Schema schema = wire.schema("HadoopRecord");
        valid.flatMapValues(value -> CheckedInvoice.items(value.invoice()).stream()
                        .map(item -> masked(schema, value.invoice(), item)).toList())
                .to(prefix + "hadoop", Produced.with(Serdes.ByteArray(), wire.serde("HadoopRecord")));
        broken.processValues(DeadLetter::new)
                .to(prefix + "dead-letters", Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
    }

    private static GenericRecord masked(Schema schema, GenericRecord invoice, GenericRecord item) {
        GenericRecord record = new GenericData.Record(schema);
        OF_INVOICE.forEach(field -> record.put(field, invoice.get(field)));
        if (invoice.get("DeliveryAddress") instanceof GenericRecord address) {
            OF_ADDRESS.forEach(field -> record.put(field, address.get(field)));
        }
        OF_ITEM.forEach(field -> record.put(field, item.get(field)));
        // The workload has no exchanges, so the sign of the invoice decides about all of its lines.
        record.put("LineKind", invoice.get("TotalAmount") instanceof Double amount && amount < 0 ? "return" : "sale");
        return record;
    }

    private void loyalty(StreamsBuilder builder, KStream<byte[], CheckedInvoice> valid) {
        GenericData.Record empty = emptyNotification();
        builder.addStateStore(Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore(ACCOUNTS), Serdes.String(), Account.serde()).withCachingEnabled());
        valid.filter((store, value) -> value.isPrime())
                .map((store, value) -> {
                    GenericRecord notification = earned(empty, value.invoice());
                    return KeyValue.pair((String) notification.get("CustomerCardNo"), notification);
                })
                .repartition(Repartitioned.with(Serdes.String(), wire.serde("Notification"))
                        .withName("by-customer").withNumberOfPartitions(PARTITIONS))
                .processValues(RunningTotal::new, ACCOUNTS)
                .to(prefix + "loyalty", Produced.with(Serdes.String(), wire.serde("Notification")));
    }

    private GenericData.Record emptyNotification() {
        GenericRecordBuilder builder = new GenericRecordBuilder(wire.schema("Notification"));
        for (String field : List.of("InvoiceNumber", "CustomerCardNo")) {
            builder.set(field, "");
        }
        for (String field : List.of("EarnedLoyaltyPoints", "TotalLoyaltyPoints")) {
            builder.set(field, decimal(0));
        }
        return builder.set("TotalAmount", 0.0).set("Sequence", 0L).set("UpdatedTime", 0L).build();
    }

    private static GenericRecord earned(GenericData.Record empty, GenericRecord invoice) {
        GenericRecord notification = new GenericData.Record(empty, false);
        double amount = (Double) invoice.get("TotalAmount");
        BigDecimal points = BigDecimal.valueOf(amount).multiply(FACTOR).setScale(2, RoundingMode.HALF_UP);
        for (String field : List.of("InvoiceNumber", "CustomerCardNo", "TotalAmount")) {
            notification.put(field, invoice.get(field));
        }
        notification.put("EventID", invoice.get("InvoiceNumber"));
        notification.put("EarnedLoyaltyPoints", decimal(points.unscaledValue().longValueExact()));
        return notification;
    }

    private static ByteBuffer decimal(long hundredths) {
        return ByteBuffer.wrap(BigDecimal.valueOf(hundredths, 2).unscaledValue().toByteArray());
    }

    private static long hundredths(ByteBuffer decimal) {
        byte[] bytes = new byte[decimal.remaining()];
        decimal.duplicate().get(bytes);
        return new java.math.BigInteger(bytes).longValueExact();
    }

    /** Adds the earned points to the account, and forwards a notification. */
    private static final class RunningTotal extends ContextualFixedKeyProcessor<String, GenericRecord, GenericRecord> {
        private KeyValueStore<String, Account> accounts;

        @Override
        public void init(FixedKeyProcessorContext<String, GenericRecord> context) {
            super.init(context);
            accounts = context.getStateStore(ACCOUNTS);
        }

        @Override
        public void process(FixedKeyRecord<String, GenericRecord> record) {
            Account before = accounts.get(record.key());
            GenericRecord notification = record.value();
            long earned = hundredths((ByteBuffer) notification.get("EarnedLoyaltyPoints"));
            Account account = (before == null ? Account.EMPTY : before).with(earned);
            accounts.put(record.key(), account);
            notification.put("TotalLoyaltyPoints", decimal(account.points()));
            notification.put("AvailableLoyaltyPoints", decimal(account.points()));
            notification.put("Sequence", account.sequence());
            notification.put("UpdatedTime", record.timestamp());
            context().forward(record.withValue(notification));
        }
    }

    /** Forwards only the first invoice of each number. */
    private static final class FirstOfEach extends ContextualFixedKeyProcessor<byte[], CheckedInvoice, CheckedInvoice> {
        private final Duration horizon;
        private WindowStore<String, Long> seen;

        FirstOfEach(Duration horizon) {
            this.horizon = horizon;
        }

        @Override
        public void init(FixedKeyProcessorContext<byte[], CheckedInvoice> context) {
            super.init(context);
            seen = context.getStateStore(SEEN);
        }

        @Override
        public void process(FixedKeyRecord<byte[], CheckedInvoice> record) {
            String number = record.value().number();
            long time = record.timestamp();
            boolean isRepeat;
            try (WindowStoreIterator<Long> found = seen.fetch(number, time - horizon.toMillis(), time)) {
                isRepeat = found.hasNext();
            }
            seen.put(number, time, time);
            if (!isRepeat) {
                context().forward(record);
            }
        }
    }

    /** Writes a dead letter with the unchanged value, the origin and the reason. */
    private static final class DeadLetter extends ContextualFixedKeyProcessor<byte[], CheckedInvoice, byte[]> {
        @Override
        public void process(FixedKeyRecord<byte[], CheckedInvoice> record) {
            context().recordMetadata().ifPresent(origin -> {
                header(record, "dead_letter_topic", origin.topic());
                header(record, "dead_letter_partition", Integer.toString(origin.partition()));
                header(record, "dead_letter_offset", Long.toString(origin.offset()));
            });
            header(record, "dead_letter_reason", record.value().reason());
            context().forward(record.withValue(record.value().value()));
        }

        private static void header(FixedKeyRecord<?, ?> record, String name, String text) {
            record.headers().add(name, text.getBytes(StandardCharsets.UTF_8));
        }
    }
}
