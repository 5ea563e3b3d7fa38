import java.util.List;
import java.util.Locale;
import org.apache.avro.generic.GenericRecord;

/** A record of pos-invoices with its invoice, or with the reason why it has none. */
record CheckedInvoice(byte[] value, GenericRecord invoice, String reason) {
    private static final double LARGEST_AMOUNT = 1e11;
    private static final int LONGEST_TEXT = 128;
    private static final int MOST_LINE_ITEMS = 10_000;
    private static final String BLANKS = " \t\r\n\f\u000b";
    private static final List<String> AMOUNTS = List.of("TaxableAmount", "CGST", "SGST", "CESS");
    private static final List<String> TEXTS = List.of(
            "InvoiceNumber", "StoreID", "PosID", "CustomerCardNo", "CustomerType", "PaymentMethod", "DeliveryType");
    private static final List<String> ADDRESS_TEXTS = List.of("City", "State", "PinCode");

    static CheckedInvoice of(byte[] value, Wire.Codec codec) {
        if (value == null) {
            return new CheckedInvoice(null, null, "no value");
        }
        try {
            GenericRecord invoice = codec.decode(value);
            return new CheckedInvoice(value, invoice, firstViolation(invoice));
        } catch (Wire.Undecodable error) {
            return new CheckedInvoice(value, null, error.getMessage());
        }
    }

    boolean isValid() {
        return reason == null;
    }

    boolean isHomeDelivery() {
        return says(invoice, "DeliveryType", "HOME-DELIVERY");
    }

    boolean isPrime() {
        return says(invoice, "CustomerType", "PRIME");
    }

    String number() {
        return (String) invoice.get("InvoiceNumber");
    }

    private static String firstViolation(GenericRecord invoice) {
        for (String field : List.of("InvoiceNumber", "StoreID")) {
            if (isMissing(invoice, field)) {
                return field + " is missing";
            }
        }
        if (invoice.get("TotalAmount") == null || !isAmount(invoice, "TotalAmount")) {
            return "TotalAmount is not a finite amount";
        }
        for (String field : AMOUNTS) {
            if (!isAmount(invoice, field)) {
                return field + " is not a finite amount";
            }
        }
        String ofItems = itemViolation(items(invoice));
        if (ofItems != null) {
            return ofItems;
        }
        if (says(invoice, "CustomerType", "PRIME") && isMissing(invoice, "CustomerCardNo")) {
            return "CustomerCardNo is missing though CustomerType is PRIME";
        }
        GenericRecord address = (GenericRecord) invoice.get("DeliveryAddress");
        if (says(invoice, "DeliveryType", "HOME-DELIVERY")) {
            for (String field : List.of("AddressLine", "ContactNumber")) {
                if (address == null || isMissing(address, field)) {
                    return "DeliveryAddress." + field + " is missing though DeliveryType is HOME-DELIVERY";
                }
            }
        }
        return tooLong(invoice, address);
    }

    private static String itemViolation(List<GenericRecord> items) {
        for (GenericRecord item : items) {
            for (String field : List.of("ItemPrice", "TotalValue")) {
                if (!isAmount(item, field)) {
                    return "InvoiceLineItems[]." + field + " is not a finite amount";
                }
            }
        }
        return null;
    }

    private static String tooLong(GenericRecord invoice, GenericRecord address) {
        for (String field : TEXTS) {
            if (isTooLong(invoice, field)) {
                return field + " is longer than 128 characters";
            }
        }
        for (String field : ADDRESS_TEXTS) {
            if (address != null && isTooLong(address, field)) {
                return "DeliveryAddress." + field + " is longer than 128 characters";
            }
        }
        return items(invoice).size() > MOST_LINE_ITEMS ? "InvoiceLineItems has more than 10000 elements" : null;
    }

    @SuppressWarnings("unchecked")
    static List<GenericRecord> items(GenericRecord invoice) {
        List<GenericRecord> items = (List<GenericRecord>) invoice.get("InvoiceLineItems");
        return items == null ? List.of() : items;
    }

    private static boolean says(GenericRecord record, String field, String value) {
        String found = (String) record.get(field);
        return found != null && found.toUpperCase(Locale.ROOT).equals(value);
    }

    private static boolean isMissing(GenericRecord record, String field) {
        String found = (String) record.get(field);
        return found == null || found.chars().allMatch(character -> BLANKS.indexOf(character) >= 0);
    }

    private static boolean isTooLong(GenericRecord record, String field) {
        String found = (String) record.get(field);
        return found != null && found.length() > LONGEST_TEXT && found.codePointCount(0, found.length()) > LONGEST_TEXT;
    }

    private static boolean isAmount(GenericRecord record, String field) {
        Double found = (Double) record.get(field);
        return found == null || Math.abs(found) < LARGEST_AMOUNT;
    }
}
