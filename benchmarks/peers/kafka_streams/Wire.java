import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** Avro in the Confluent framing, with the ids of schemas/ids.json. KafkaAvroSerde would need a Schema Registry. */
final class Wire {
    private static final int HEADER = 5;

    private final Path folder;
    private final JsonNode ids;

    Wire(Path folder) throws IOException {
        this.folder = folder;
        this.ids = new ObjectMapper().readTree(folder.resolve("ids.json").toFile());
    }

    Schema schema(String name) {
        return parsed(name + ".avsc");
    }

    /** Reads and writes records of this name. It is not thread-safe, so each thread needs its own. */
    Codec codec(String name) {
        return new Codec(name, schema(name), idOf(name + ".avsc"));
    }

    Serde<GenericRecord> serde(String name) {
        ThreadLocal<Codec> codecs = ThreadLocal.withInitial(() -> codec(name));
        return Serdes.serdeFrom(
                (topic, record) -> record == null ? null : codecs.get().encode(record),
                (topic, bytes) -> bytes == null ? null : codecs.get().decode(bytes));
    }

    private int idOf(String file) {
        for (Map.Entry<String, JsonNode> entry : ids.properties()) {
            if (entry.getValue().asText().equals(file)) {
                return Integer.parseInt(entry.getKey());
            }
        }
        throw new IllegalArgumentException("no id for " + file);
    }

    private Schema parsed(String file) {
        try {
            Schema schema = new Schema.Parser().parse(folder.resolve(file).toFile());
            texts(schema);
            return schema;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Lets Avro decode texts to String instead of Utf8, because the rules read most of them. */
    private static void texts(Schema schema) {
        switch (schema.getType()) {
            case STRING -> GenericData.setStringType(schema, GenericData.StringType.String);
            case UNION -> schema.getTypes().forEach(Wire::texts);
            case ARRAY -> texts(schema.getElementType());
            case RECORD -> schema.getFields().forEach(field -> texts(field.schema()));
            default -> { }
        }
    }

    /** A value that cannot be decoded. */
    static final class Undecodable extends RuntimeException {
        Undecodable(String message) {
            super(message, null, false, false);
        }
    }

    final class Codec {
        private final String name;
        private final Schema schema;
        private final int id;
        private final GenericDatumWriter<GenericRecord> writer;
        private final Map<Integer, GenericDatumReader<GenericRecord>> readers = new ConcurrentHashMap<>();
        private final ByteArrayOutputStream buffer = new ByteArrayOutputStream(1024);
        private BinaryEncoder encoder;
        private BinaryDecoder decoder;

        private Codec(String name, Schema schema, int id) {
            this.name = name;
            this.schema = schema;
            this.id = id;
            this.writer = new GenericDatumWriter<>(schema);
        }

        Schema schema() {
            return schema;
        }

        byte[] encode(GenericRecord record) {
            buffer.reset();
            buffer.writeBytes(ByteBuffer.allocate(HEADER).put((byte) 0).putInt(id).array());
            encoder = EncoderFactory.get().directBinaryEncoder(buffer, encoder);
            try {
                writer.write(record, encoder);
                encoder.flush();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            return buffer.toByteArray();
        }

        GenericRecord decode(byte[] bytes) {
            if (bytes.length < HEADER || bytes[0] != 0) {
                throw new Undecodable("not in the Confluent framing: no magic byte 0 and schema id");
            }
            int written = ByteBuffer.wrap(bytes, 1, Integer.BYTES).getInt();
            GenericDatumReader<GenericRecord> reader = readers.computeIfAbsent(written, this::reader);
            decoder = DecoderFactory.get().binaryDecoder(bytes, HEADER, bytes.length - HEADER, decoder);
            try {
                return reader.read(null, decoder);
            } catch (IOException | RuntimeException error) {
                throw new Undecodable("not an Avro " + name + " of schema id " + written);
            }
        }

        private GenericDatumReader<GenericRecord> reader(int written) {
            JsonNode file = ids.get(Integer.toString(written));
            if (file == null) {
                throw new Undecodable("unknown schema id " + written);
            }
            return new GenericDatumReader<>(parsed(file.asText()), schema);
        }
    }
}
