"""The options by which Spark connects to Kafka. The source and the sink share them."""

from services.settings import Settings

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def kafka_connection(settings: Settings) -> dict[str, str]:
    """Spark options with the brokers' addresses, encryption and login. Streams and batches both use them.

    The options have the certificates and the password themselves, not file names. Executors on other machines connect
    too, and only the driver has the files. Kafka's clients and Spark hide both values in their logs.
    """
    options = {
        "kafka.bootstrap.servers": settings.kafka_bootstrap_servers,
        "kafka.security.protocol": settings.kafka_security_protocol,
        # While a client connects to a broker, it does not ask another broker who leads. By default it tries for 10 to
        # 30 s to connect to a machine that does not answer.
        "kafka.socket.connection.setup.timeout.ms": "2000",
        "kafka.socket.connection.setup.timeout.max.ms": "4000",
    }
    if settings.kafka_security_protocol.endswith("SSL") and settings.kafka_ssl_ca_location:
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": settings.kafka_ssl_ca_location.read_text(encoding="utf-8"),
        }
    if settings.kafka_security_protocol.startswith("SASL_"):
        options |= {
            "kafka.sasl.mechanism": settings.kafka_sasl_mechanism,
            "kafka.sasl.jaas.config": _jaas_config(settings),
        }
    return options


def _jaas_config(settings: Settings) -> str:
    module = _LOGIN_MODULES[settings.kafka_sasl_mechanism]
    user, password = _quote(settings.kafka_sasl_username or ""), _quote(settings.kafka_password)
    return f"{module} required username={user} password={password};"


def _quote(text: str) -> str:
    """Quote a text for JAAS, where a backslash escapes the next character inside double quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
