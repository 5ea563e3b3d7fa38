"""Every setting of every process, read from the environment (``LOYALTY_…``) once, at the top of a process."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.topics import Topic

TOP_CUSTOMERS_THRESHOLD = Decimal(1000)
"""Points; at the loyalty factor of 0.02, purchases of 50,000."""

Port = Annotated[int, Field(ge=1, le=65535)]


class Settings(BaseSettings):
    """The settings, with what each is for; ``loyalty settings`` prints them with their values."""

    model_config = SettingsConfigDict(env_prefix="LOYALTY_", env_ignore_empty=True, frozen=True, extra="forbid")

    kafka_bootstrap_servers: str = Field("127.0.0.1:9092", description="Kafka brokers, host:port separated by commas.")
    kafka_security_protocol: str = Field(
        "PLAINTEXT",
        pattern="^(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)$",
        description="How brokers are spoken to; SASL_SSL where they are secured.",
    )
    kafka_ssl_ca_location: Path | None = Field(
        None, description="PEM file of the authorities that sign brokers' certificates; unset: those of the system."
    )
    kafka_sasl_mechanism: str = Field(
        "SCRAM-SHA-512",
        pattern="^(PLAIN|SCRAM-SHA-256|SCRAM-SHA-512)$",
        description="How this process proves who it is, with SASL.",
    )
    kafka_sasl_password_file: Path | None = Field(
        None, description="File that holds the password, as Docker and Kubernetes hand them out."
    )
    kafka_sasl_password: SecretStr | None = Field(
        None, validate_default=True, description="The password itself, where there is no file."
    )
    kafka_sasl_username: str | None = Field(
        None, min_length=1, validate_default=True, description="Who this process is to the brokers, with SASL."
    )
    topic_prefix: str = Field(
        "", pattern=r"^[a-zA-Z0-9-]*$", description="Put before every topic's name, to share a cluster."
    )
    replication_factor: PositiveInt = Field(1, description="Replicas of each topic that is created; 3 in production.")
    schema_registry_url: str | None = Field(
        None, description="Schema Registry that gives schema ids; unset: schemas/ids.json gives them."
    )

    loyalty_factor: Decimal = Field(
        Decimal("0.02"), ge=0, le=1, allow_inf_nan=False, description="Points per unit of money on a PRIME invoice."
    )
    programme_notice: timedelta = Field(
        timedelta(seconds=60),
        ge=timedelta(0),
        description="How long before it takes effect a version of the programme must be published (ISO 8601); longer "
        "than every process takes to learn of it.",
    )
    repeat_horizon: timedelta = Field(
        timedelta(days=9),
        ge=timedelta(0),
        description="How long after an invoice a repeat of its number is recognised (ISO 8601); longer than any record "
        "stays in pos-invoices and hadoop, which the pipeline checks at start.",
    )

    spark_master: str = Field("local[*]", description="Spark master of a session started without spark-submit.")
    spark_driver_memory: str = Field("1g", description="Heap of a session started without spark-submit.")
    spark_java_options: str = Field(
        "-XX:+UseSerialGC", description="Java options of a session started without spark-submit."
    )
    spark_jars_dir: Path = Field(
        Path("var/jars/spark"),
        description="Folder of jars put on Spark's class path when the session is started locally; "
        "spark-submit brings its own.",
    )
    checkpoint_dir: str = Field(
        "var/checkpoints", description="Spark's checkpoints, one folder a query; any Hadoop URI."
    )
    export_dir: str = Field("var/parquet", description="Where the Parquet files go; any Hadoop URI.")
    archive_dir: str = Field(
        "var/archive", description="Where `loyalty archive` keeps what happened to accounts; any Hadoop URI."
    )
    shuffle_partitions: PositiveInt = Field(3, description="Spark tasks a shuffle; fixed for the life of a checkpoint.")
    max_offsets_per_trigger: PositiveInt = Field(
        100_000, description="Records a micro-batch reads at most; sales and export wait for as many."
    )
    accept_data_loss: bool = Field(
        default=False,
        description="Go on where retention has deleted what a query had not read; else it refuses to start.",
    )
    trigger_interval: timedelta = Field(
        timedelta(milliseconds=100), description="Shortest time between the starts of two micro-batches (ISO 8601)."
    )
    timer_interval: timedelta = Field(
        timedelta(seconds=10),
        ge=timedelta(seconds=1),
        description="How late points may be released, expire or lapse while there is no traffic (ISO 8601).",
    )
    sales_interval: timedelta = Field(
        timedelta(seconds=10),
        ge=timedelta(0),
        description="How long invoices may wait for the sales query until they fill a micro-batch (ISO 8601).",
    )
    export_interval: timedelta = Field(
        timedelta(seconds=60),
        ge=timedelta(0),
        description="The same for the continuous export, which makes one file a date and micro-batch.",
    )
    stop_timeout: timedelta = Field(
        timedelta(seconds=60), description="How long SIGTERM waits for running micro-batches to end."
    )
    metrics_host: str = Field("127.0.0.1", description="Where the pipeline serves its Prometheus metrics.")
    metrics_port: Port = Field(9108, description="Port of the pipeline's Prometheus metrics.")

    api_host: str = Field("127.0.0.1", description="Where the API listens.")
    api_port: Port = Field(8080, description="Port the API listens on.")
    state_dir: Path = Field(Path("var/state"), description="The API's local stores; one process a folder.")
    state_store: str = Field("rocksdb", pattern="^(rocksdb|memory)$", description="Kind of local store.")
    application_server: str | None = Field(
        None,
        pattern=r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$",
        description="URL under which the other instances reach this one; unset: http://, api_host and api_port.",
    )
    standby_replicas: NonNegativeInt = Field(
        1, description="Instances that keep a warm copy of each partition beside its owner."
    )
    session_timeout: timedelta = Field(
        timedelta(seconds=8),
        ge=timedelta(seconds=1),
        description="After this long without a heartbeat an instance's partitions go to others (ISO 8601); "
        "not below the broker's group.min.session.timeout.ms.",
    )
    top_customers_threshold: Decimal = Field(
        TOP_CUSTOMERS_THRESHOLD,
        allow_inf_nan=False,
        description="Points from which on a customer is in the store top-customers; another figure rebuilds it.",
    )

    ledger_url: str = Field(
        "sqlite:///var/ledger.sqlite",
        description="The ledger's database: sqlite:///file or postgresql://user@host/name.",
    )
    ledger_metrics_port: Port = Field(
        9109, description="Port of the Prometheus metrics and the health of `loyalty ledger run`, at metrics_host."
    )
    pseudonym_key_file: Path = Field(
        Path("var/pseudonym.key"),
        description="Key of the pseudonyms, 32 random bytes; made where it is missing. Keep it apart from the data.",
    )

    webhooks_file: Path = Field(Path("webhooks.yaml"), description="The endpoints of `loyalty webhooks`.")
    webhooks_metrics_port: Port = Field(
        9110, description="Port of the Prometheus metrics of `loyalty webhooks`, at metrics_host."
    )

    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="Lowest level that is logged.")
    log_format: str = Field("console", pattern="^(console|json)$", description="Log lines for people or for machines.")

    @field_validator("kafka_sasl_password", "kafka_sasl_username")
    @classmethod
    def _can_prove_who_it_is(cls, value: object, info: ValidationInfo) -> object:
        needs_proof = str(info.data.get("kafka_security_protocol")).startswith("SASL_")
        # A file that was refused is no longer in the data; that it cannot be read says it all.
        file = info.data.get("kafka_sasl_password_file", "refused")
        has_file = info.field_name == "kafka_sasl_password" and file is not None
        if needs_proof and value is None and not has_file:
            raise ValueError(f"is needed with LOYALTY_KAFKA_SECURITY_PROTOCOL={info.data['kafka_security_protocol']}")
        if value is not None and has_file:
            raise ValueError("cannot be together with LOYALTY_KAFKA_SASL_PASSWORD_FILE")
        return value

    @field_validator("kafka_sasl_password_file", "kafka_ssl_ca_location")
    @classmethod
    def _can_be_read(cls, file: Path | None) -> Path | None:
        if file is not None:
            try:
                file.open("rb").close()
            except OSError as error:
                raise ValueError(f"{file}: {error.strerror}") from error
        return file

    @property
    def kafka_password(self) -> str:
        """The password of this process; raises OSError for a file that can no longer be read."""
        if self.kafka_sasl_password_file is not None:
            return password_in(self.kafka_sasl_password_file)
        return self.kafka_sasl_password.get_secret_value() if self.kafka_sasl_password else ""

    @property
    def advertised_url(self) -> str:
        """Where the other instances find this one."""
        return self.application_server or f"http://{self.api_host}:{self.api_port}"

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.application_server is None and self.api_host in ("0.0.0.0", "::"):  # noqa: S104  # compared, not bound
            raise ValueError(f"api_host {self.api_host} is nowhere to be reached: LOYALTY_APPLICATION_SERVER is needed")
        return self

    def name_of(self, topic: Topic) -> str:
        """The topic's name on the broker."""
        return self.topic_prefix + topic.name


def password_in(file: Path) -> str:
    """The password that a file holds, without the line end that editors put behind it; raises OSError."""
    return file.read_text(encoding="utf-8").rstrip("\r\n")


class SettingsError(ValueError):
    """Settings that cannot be; the message names the environment variables, in one line."""


def read_settings(**given: object) -> Settings:
    """The settings of the environment, with those that are given (not None) in their place; raises SettingsError."""
    prefix = Settings.model_config["env_prefix"]
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        wrong = (
            f"{prefix}{str(next(iter(item['loc']), 'API_HOST')).upper()}: {item['msg']}" for item in error.errors()
        )
        raise SettingsError("; ".join(wrong)) from error
