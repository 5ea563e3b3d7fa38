"""How Spark's source and sink reach Kafka, configured in one place."""

from services.settings import Settings

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def kafka_connection(settings: Settings) -> dict[str, str]:
    """Where the brokers are and how they are spoken to: options of every read and write, for streams and batches.

    Certificates and password go with the options, not as names of files: only the driver has them, and executors on
    other machines connect too. Kafka's clients and Spark blank both in what they log.
    """
    options = {
        "kafka.bootstrap.servers": settings.kafka_bootstrap_servers,
        "kafka.security.protocol": settings.kafka_security_protocol,
    }
    if settings.kafka_security_protocol.endswith("SSL") and settings.kafka_ssl_ca_location:
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": settings.kafka_ssl_ca_location.read_text(encoding="utf-8"),
        }
    if settings.kafka_security_protocol.startswith("SASL_"):
        options |= {
            "kafka.sasl.mechanism": settings.kafka_sasl_mechanism,
            "kafka.sasl.jaas.config": _login(settings),
        }
    return options


def _login(settings: Settings) -> str:
    module = _LOGIN_MODULES[settings.kafka_sasl_mechanism]
    user, password = _quoted(settings.kafka_sasl_username or ""), _quoted(settings.kafka_password)
    return f"{module} required username={user} password={password};"


def _quoted(text: str) -> str:
    """As JAAS reads it: backslashes escape within double quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
