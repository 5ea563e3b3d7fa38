"""The settings of all processes. A process reads them once, at its start, from the environment (``LOYALTY_…``)."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from schemas.topics import Topic
from services.errors import SettingsError
from services.secret_files import lines_of
from services.settings_errors import explain, hint, without_passwords

TOP_CUSTOMERS_THRESHOLD = Decimal(1000)
"""In points. With the loyalty factor 0.02, a customer earns them with purchases of 50,000."""

PARTITIONS = 3
"""The default number of partitions of a topic whose number is not fixed."""

ExportFormat = Literal["parquet", "delta"]
Port = Annotated[int, Field(ge=1, le=65535)]
_ISO_DURATION = re.compile(r"-?P(?=.)(\d+W)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?")


def _require_iso(value: object) -> object:
    """Refuse other forms that Pydantic accepts: months and years, which have no fixed length, and ``9 days``."""
    if isinstance(value, str) and not _ISO_DURATION.fullmatch(value):
        raise PydanticCustomError("time_delta_parsing", "a duration")
    return value


IsIso = BeforeValidator(_require_iso)
Duration = Annotated[timedelta, Field(ge=timedelta(0)), IsIso]


class Settings(BaseSettings):
    """All settings with their descriptions. ``loyalty settings`` prints them with their values."""

    model_config = SettingsConfigDict(env_prefix="LOYALTY_", env_ignore_empty=True, frozen=True, extra="forbid")

    kafka_bootstrap_servers: str = Field("127.0.0.1:9092", description="Kafka brokers, host:port separated by commas.")
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT",
        description="Security protocol of the brokers. Use SASL_SSL for secured brokers.",
    )
    kafka_ssl_ca_location: Path | None = Field(
        None,
        description="PEM file with the authorities that sign the certificates of the brokers. Unset: the "
        "authorities of the system.",
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512",
        description="SASL mechanism by which this process authenticates.",
    )
    kafka_sasl_password_file: Path | None = Field(
        None, description="File with the SASL password, as Docker and Kubernetes provide it."
    )
    kafka_sasl_password: SecretStr | None = Field(
        None, validate_default=True, description="The SASL password, if there is no password file."
    )
    kafka_sasl_username: str | None = Field(
        None, min_length=1, validate_default=True, description="SASL user of this process."
    )
    topic_prefix: str = Field(
        "",
        pattern=r"^[a-zA-Z0-9-]*$",
        description="Prefix of all topic names. It allows several deployments on one cluster.",
    )
    replication_factor: PositiveInt = Field(1, description="Replicas of each new topic. Use 3 in production.")
    partitions: PositiveInt = Field(
        PARTITIONS,
        description="Partitions of each topic, except the topics that always have one. All processes need the same "
        "number. It is fixed for the life of the topics, because another number would move keys to other partitions.",
    )
    schema_registry_url: str | None = Field(
        None,
        pattern=r"^\s*https?://[^\s,]+(\s*,\s*https?://[^\s,]+)*\s*$",
        description="URL of the Schema Registry that assigns schema ids. Unset: schemas/ids.json assigns them.",
    )

    loyalty_factor: Decimal = Field(
        Decimal("0.02"),
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Points for each unit of money on a PRIME invoice.",
    )
    programme_notice: Duration = Field(
        timedelta(seconds=60),
        description="Shortest time between the publication of a programme version and its start (ISO 8601). Within "
        "this time every process must have read the version.",
    )
    repeat_horizon: Duration = Field(
        timedelta(days=9),
        description="Time within which a second invoice of the same number is a duplicate (ISO 8601). It must be "
        "at least the retention of pos-invoices, loyalty-commands and hadoop plus one segment. The pipeline checks "
        "this at its start. A query remembers a number for at least twice this time, because a duplicate may wait in "
        "its topic. If you set more than nine days, set the retention of the topic loyalty-decisions to 2.2 times this "
        "time.",
    )

    spark_master: str = Field(
        "",
        description="Spark master, without spark-submit. Empty: local mode, with two concurrent tasks for each core.",
    )
    spark_driver_memory: str = Field("1g", description="Heap of the Spark driver, without spark-submit.")
    spark_java_options: str = Field(
        "-XX:+UseSerialGC -Xmn400m",
        description="Java options of the Spark driver, without spark-submit. The default gives 400 MB of the heap to "
        "new objects, so that garbage collections are rare.",
    )
    spark_jars_dir: Path = Field(
        Path("var/jars/spark"),
        description="Folder of the jars for Spark's class path, without spark-submit.",
    )
    checkpoint_dir: str = Field(
        "var/checkpoints",
        description="Folder of the Spark checkpoints, with one folder for each query. Any Hadoop URI.",
    )
    export_dir: str = Field("var/parquet", description="Folder of the exported files. Any Hadoop URI.")
    export_format: ExportFormat = Field(
        "parquet",
        description="Format of the exported files. Fixed for the life of a folder. An object store needs delta.",
    )
    tables_dir: str = Field(
        "var/tables",
        description="Folder of the tables that `loyalty export write` writes. An object store needs delta.",
    )
    archive_dir: str = Field(
        "var/archive",
        description="Folder in which the query archive keeps the events of accounts. A path, or a Hadoop URI with "
        "atomic renames, so no object store.",
    )
    shuffle_partitions: PositiveInt = Field(
        2,
        description="Number of tasks of each Spark shuffle. Use at most one task for each core. The number is fixed "
        "for the life of a checkpoint.",
    )
    max_offsets_per_trigger: PositiveInt = Field(
        100_000,
        description="Largest number of records of each topic in one micro-batch. All queries except loyalty wait for "
        "this number of records, at most for their interval. They start at most one micro-batch each time "
        "they ask Kafka for its end offsets (see `LOYALTY_TRIGGER_INTERVAL`), so a small number limits their "
        "throughput.",
    )
    accept_data_loss: bool = Field(
        default=False,
        description="Whether a query starts although retention has deleted records that it has not read, although its "
        "topic was created again, or although Kafka has lost the newest records of a partition.",
    )
    trigger_interval: Duration = Field(
        timedelta(milliseconds=200),
        description="Shortest time between the starts of two micro-batches (ISO 8601). The loyalty query asks Kafka "
        "for the end offsets once in this time. Each other query asks every two seconds, or once in half of its "
        "interval if that is shorter. With an interval of over twelve minutes, it asks 360 times in it.",
    )
    timer_interval: Annotated[timedelta, IsIso] = Field(
        timedelta(seconds=30),
        ge=timedelta(seconds=1),
        description="Interval in which the loyalty query checks its timers, for example for points that expire (ISO "
        "8601). A timer is late by at most this interval plus two seconds.",
    )
    fan_out_interval: Duration = Field(
        timedelta(seconds=1),
        description="Longest time that the fan-out query waits for a full micro-batch (ISO 8601). While it waits, the "
        "loyalty query has the cores.",
    )
    sales_interval: Duration = Field(
        timedelta(seconds=10),
        description="Longest time that the sales query waits for a full micro-batch (ISO 8601).",
    )
    export_interval: Duration = Field(
        timedelta(seconds=60),
        description="Longest time that the continuous export waits for a full micro-batch (ISO 8601). The export "
        "writes one file for each date and micro-batch. For Parquet in production, set PT1H.",
    )
    archive_interval: Annotated[timedelta, IsIso] = Field(
        timedelta(hours=1),
        ge=timedelta(0),
        le=timedelta(days=1),  # far below the retention of the topics
        description="Longest time that the query archive waits for a full micro-batch (ISO 8601), at most one day. The "
        "archive writes one file for each date and micro-batch. With `PT0S`, running pipelines do not archive. "
        "`loyalty archive` still does. Set the same value for all drivers.",
    )
    stop_timeout: Duration = Field(
        timedelta(seconds=60),
        description="Longest time that the pipeline waits after SIGTERM for running micro-batches (ISO 8601).",
    )
    metrics_host: str = Field(
        "127.0.0.1", description="Host on which the pipeline, the ledger and the webhooks serve metrics and health."
    )
    metrics_key_file: Path | None = Field(
        None,
        description="File with the keys of the metrics of the pipeline, the ledger and the webhooks, one in each line. "
        "A request for metrics then needs one of them as a bearer token. It must be set if `LOYALTY_METRICS_HOST` is "
        "not a loopback address.",
    )
    metrics_port: Port = Field(9108, description="Port of the pipeline's Prometheus metrics.")
    pipeline_drivers: int = Field(
        2,
        ge=1,
        le=2,
        description="Number of Spark drivers that `loyalty up` starts and `loyalty status` asks. 2: the loyalty query "
        "has its own driver, and the other queries have a second one with a lower priority. 1: one driver runs all "
        "queries. One driver needs less memory, but balances and redemptions wait for the other queries.",
    )
    background_metrics_port: Port = Field(9111, description="Port of the metrics of the second driver.")
    status_urls: str = Field(
        "",
        pattern=r"^((pipeline|background|ledger|webhooks)=https?://\S+( |$))*$",
        description="URLs of the parts that run on other hosts, for `loyalty status`, `GET /v1/status` and the "
        "console, for example `pipeline=http://pipeline:9108 ledger=http://ledger:9109`. The parts are pipeline, "
        "background (the second driver), ledger and webhooks. Default of a part: `LOYALTY_METRICS_HOST` and the part's "
        "port.",
    )

    api_host: str = Field("127.0.0.1", description="Host on which the API listens.")
    api_port: Port = Field(8080, description="Port on which the API listens.")
    api_access: Literal["loopback", "authenticated", "anyone"] = Field(
        "loopback",
        description="Who may send requests to the API. loopback: everybody on this machine. The API then listens on "
        "loopback addresses only. authenticated: callers with an API key or a token. anyone: everybody who reaches the "
        "port. Use this only in a network that something else protects.",
    )
    api_certificate_file: Path | None = Field(
        None,
        description="PEM file with the certificate of the API and its chain. The API then speaks TLS only. A new "
        "certificate is used a second after the files change.",
    )
    api_certificate_key_file: Path | None = Field(
        None, validate_default=True, description="PEM file with the key of the certificate."
    )
    api_ca_file: Path | None = Field(
        None,
        description="PEM file with the authorities that sign the certificates of instances. Programs that send "
        "requests to an instance use it: other instances, `loyalty audit` and `loyalty status`. Unset: the authorities "
        "of the system.",
    )
    api_client_ca_file: Path | None = Field(
        None,
        validate_default=True,
        description="PEM file with authorities. Each caller of the API, probes included, then needs a certificate that "
        "one of them signed (mutual TLS). Instances send their own certificate. Unset: callers need no certificate.",
    )
    request_timeout: Annotated[timedelta, IsIso] = Field(
        timedelta(seconds=20),
        ge=timedelta(seconds=1),
        description="Time within which a whole request must arrive, headers and body (ISO 8601). The API closes the "
        "connection of a slower request. It also closes the connection of a client that reads less than 64 KiB of a "
        "response in this time.",
    )
    most_connections: PositiveInt = Field(
        1_000,
        description="Largest number of open connections of one API instance. The API answers a further connection "
        "with 503 and closes it. The limit of open files of the process must be larger.",
    )
    api_key_file: Path = Field(
        Path("var/api.key"),
        description="File with the API key that `loyalty audit` (scope balance:read, without limits) and `loyalty "
        "status` (scope operate) send to the API. Without the file they send no key. `make up` creates the default "
        "file.",
    )
    token_issuer: str | None = Field(
        None, description="Issuer (claim iss) whose bearer tokens the API accepts. Unset: it accepts API keys only."
    )
    token_audience: str | None = Field(
        None, description="Audience (claim aud) that tokens must have. It is needed with an issuer."
    )
    token_keys: str | None = Field(
        None,
        validate_default=True,
        description="URL or file of the JWK set of the issuer. It is needed with an issuer.",
    )
    instance_secret_file: Path = Field(
        Path("var/instance.secret"),
        description="File with the secret with which instances sign the requests that they forward. All instances need "
        "the same secret. The file can have several, one in each line: an instance signs with the first one, and "
        "accepts all of them. A missing file is created.",
    )
    accept_unsigned_forwards: bool = Field(
        default=False,
        description="Whether an instance accepts forwarded requests with valid credentials but without a signature, "
        "and writes commands that release 0.1 recognises. Set it only during a rolling upgrade from release 0.1.",
    )
    rate_limit: str = Field(
        "500/second",
        pattern="^[1-9][0-9]{0,8}/(second|minute|hour|day)$",
        description="Limit of requests of one caller to one route of one instance, with "
        "`LOYALTY_API_ACCESS=authenticated`.",
    )
    failed_login_rate: str = Field(
        "60/minute",
        pattern="^[1-9][0-9]{0,8}/(second|minute|hour|day)$",
        description="Limit of requests with wrong credentials from one address to one instance, with "
        "`LOYALTY_API_ACCESS=authenticated`. Further requests get 429, unless their credentials were accepted before. "
        "Behind a proxy, set FORWARDED_ALLOW_IPS of uvicorn to the address of the proxy. The API then uses "
        "X-Forwarded-For.",
    )
    most_requests_at_once: PositiveInt = Field(
        200,
        description="Limit of concurrent requests of one caller to one instance, including long polls, with "
        "`LOYALTY_API_ACCESS=authenticated`.",
    )
    most_event_streams: PositiveInt = Field(
        100, description="Limit of open event streams of one caller on one API instance."
    )
    cors_origins: str = Field(
        "",
        pattern=r"^(https?://[^,\s/]+(,https?://[^,\s/]+)*)?$",
        description="Origins of web pages that may call the API, separated by commas, with "
        "`LOYALTY_API_ACCESS=authenticated`. Unset: none.",
    )
    state_dir: Path = Field(
        Path("var/state"), description="Folder of the local state stores of the API. Each process needs its own folder."
    )
    state_store: Literal["rocksdb", "memory"] = Field("rocksdb", description="Kind of the local state stores.")
    application_server: str | None = Field(
        None,
        pattern=r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$",
        description="URL at which peers reach this instance. Unset: http:// (with `LOYALTY_API_CERTIFICATE_FILE` "
        "https://) with `LOYALTY_API_HOST` and `LOYALTY_API_PORT`.",
    )
    standby_replicas: NonNegativeInt = Field(1, description="Number of standbys for each partition.")
    session_timeout: Annotated[timedelta, IsIso] = Field(
        timedelta(seconds=8),
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),  # the limit of librdkafka
        description="Time without a heartbeat after which the partitions of an instance move to others "
        "(ISO 8601). It must not be below group.min.session.timeout.ms of the broker.",
    )
    top_customers_threshold: Decimal = Field(
        TOP_CUSTOMERS_THRESHOLD,
        allow_inf_nan=False,
        description="Points that a customer needs to be in the store top-customers. A new value rebuilds the store.",
    )

    ledger_url: str = Field(
        "sqlite:///var/ledger.sqlite",
        description="URL of the ledger database: sqlite:///file or postgresql://user@host/name.",
    )
    ledger_metrics_port: Port = Field(
        9109, description="Port of the metrics and health of `loyalty ledger run`, on `LOYALTY_METRICS_HOST`."
    )
    pseudonym_key_file: Path = Field(
        Path("var/pseudonym.key"),
        description="File with the key of the pseudonyms: 32 random bytes. A missing file is created. Keep the file "
        "apart from the data.",
    )

    customer_key_file: Path | None = Field(
        None,
        description="File with the key of the customer keys in the SQL table customer_line_items: 32 random bytes. A "
        "missing file is created. Unset: the table cannot be read.",
    )

    webhooks_file: Path = Field(Path("webhooks.yaml"), description="File with the endpoints of `loyalty webhooks`.")
    webhooks_metrics_port: Port = Field(
        9110, description="Port of the metrics of `loyalty webhooks`, on `LOYALTY_METRICS_HOST`."
    )

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO",
        description="Lowest level of log lines. The lines `audit` of the API appear at each level.",
    )
    log_format: Literal["console", "json"] = Field(
        "console", description="Format of log lines: for people or for machines."
    )

    @field_validator("kafka_sasl_password", "kafka_sasl_username")
    @classmethod
    def _require_credentials(cls, value: object, info: ValidationInfo) -> object:
        needs_proof = str(info.data.get("kafka_security_protocol")).startswith("SASL_")
        # If the password file itself has an error, pydantic leaves it out of ``info.data``. One error is enough.
        file = info.data.get("kafka_sasl_password_file", "refused")
        has_file = info.field_name == "kafka_sasl_password" and file is not None
        if needs_proof and value is None and not has_file:
            protocol = info.data["kafka_security_protocol"]
            choice = "LOYALTY_KAFKA_SASL_PASSWORD_FILE or this variable " * (info.field_name == "kafka_sasl_password")
            raise ValueError(f"{choice}must be set, because LOYALTY_KAFKA_SECURITY_PROTOCOL is {protocol}")
        if value is not None and has_file:
            raise ValueError("cannot be set together with LOYALTY_KAFKA_SASL_PASSWORD_FILE: remove one of them")
        return value

    @field_validator("token_keys")
    @classmethod
    def _require_all_of_the_issuer(cls, keys: str | None, info: ValidationInfo) -> str | None:
        given = [info.data.get("token_issuer"), info.data.get("token_audience"), keys]
        if None in given and any(given):
            raise ValueError(
                "LOYALTY_TOKEN_ISSUER, LOYALTY_TOKEN_AUDIENCE and LOYALTY_TOKEN_KEYS belong together: set all of them, "
                "or none"
            )
        return keys

    @field_validator("api_certificate_key_file", "api_client_ca_file")
    @classmethod
    def _require_certificate(cls, file: Path | None, info: ValidationInfo) -> Path | None:
        if "api_certificate_file" not in info.data:
            return file  # another error says why the certificate cannot be used
        certificate = info.data["api_certificate_file"]
        is_key = info.field_name == "api_certificate_key_file"
        if (certificate is None and file) or (certificate and is_key and file is None):
            raise ValueError("LOYALTY_API_CERTIFICATE_FILE and LOYALTY_API_CERTIFICATE_KEY_FILE must be set, too")
        return file

    @field_validator(
        "kafka_sasl_password_file",
        "kafka_ssl_ca_location",
        "metrics_key_file",
        "api_certificate_file",
        "api_certificate_key_file",
        "api_ca_file",
        "api_client_ca_file",
    )
    @classmethod
    def _require_readable(cls, file: Path | None) -> Path | None:
        if file is not None:
            try:
                file.open("rb").close()
            except OSError as error:
                raise ValueError(f"cannot read {file}: {error.strerror}") from error
        return file

    def shown(self) -> dict[str, Any]:
        """All values as JSON, without passwords, also in URLs and options. Users copy them into tickets and logs."""
        values = self.model_dump(mode="json")
        return {name: without_passwords(value) if isinstance(value, str) else value for name, value in values.items()}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy that has these values. With another Kafka password, it forgets the password that this process uses."""
        copy = super().model_copy(update=update, deep=deep)
        if not {"kafka_sasl_password_file", "kafka_sasl_password"}.isdisjoint(update or {}):
            vars(copy).pop("kafka_password", None)
        return copy

    @cached_property
    def kafka_password(self) -> str:
        """The SASL password of this process. The first client reads its file. Raises OSError.

        A later client needs no file, so a password that an operator replaces does not end a running process.
        """
        if self.kafka_sasl_password_file is not None:
            return password_in(self.kafka_sasl_password_file)
        return self.kafka_sasl_password.get_secret_value() if self.kafka_sasl_password else ""

    @property
    def advertised_url(self) -> str:
        """The URL at which peers reach this instance."""
        scheme = "https" if self.api_certificate_file else "http"
        return self.application_server or f"{scheme}://{host_in_url(self.api_host)}:{self.api_port}"

    def require_safe_api(self) -> None:
        """Raise SettingsError if the API would serve other machines without credentials, or peers cannot reach it."""
        if self.api_access == "loopback" and not is_loopback(self.api_host):
            raise SettingsError(
                f"LOYALTY_API_HOST: other machines can reach {self.api_host}. Without credentials, the API listens on "
                "loopback addresses only. Set LOYALTY_API_ACCESS=authenticated and make a key with `loyalty keys "
                "create`, or set LOYALTY_API_ACCESS=anyone if something else protects the port"
            )
        if self.application_server is None and self.api_host in ("0.0.0.0", "::"):  # noqa: S104  # compared, not bound
            raise SettingsError(
                f"LOYALTY_APPLICATION_SERVER: it must be set, because no peer can reach {self.api_host}. Set it to the "
                "URL at which the other instances reach this one, such as http://10.0.0.7:8080"
            )

    def require_safe_metrics(self) -> None:
        """Raise SettingsError if other machines could read the metrics without a key."""
        if self.metrics_key_file is None:
            if not is_loopback(self.metrics_host):
                raise SettingsError(
                    f"LOYALTY_METRICS_HOST: other machines can reach {self.metrics_host}. Without a key, a process "
                    "serves its metrics on loopback addresses only. Write a random key into a file, for example with "
                    "`openssl rand -hex 32`, and set LOYALTY_METRICS_KEY_FILE to the file"
                )
        elif not lines_of(self.metrics_key_file):
            raise SettingsError(f"LOYALTY_METRICS_KEY_FILE: {self.metrics_key_file} has no key: write one into it")

    def name_of(self, topic: Topic) -> str:
        """The name of the topic on the broker."""
        return self.topic_prefix + topic.name

    def partitions_of(self, topic: Topic) -> int:
        """The number of partitions of the topic."""
        return topic.partitions or self.partitions


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: localhost or a loopback address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_in_url(host: str) -> str:
    """The host as URLs need it: an IPv6 address has brackets there."""
    return f"[{host}]" if ":" in host else host


def password_in(file: Path) -> str:
    """The password in a file, without the line break that editors append. Raises OSError."""
    return file.read_text(encoding="utf-8").rstrip("\r\n")


def read_settings(**overrides: object) -> Settings:
    """The settings of the environment. Arguments that are not None replace them. An empty variable counts as not set.

    Raises SettingsError if a value is wrong, or if a variable LOYALTY_… is no setting, because it may be misspelt.
    """
    prefix = Settings.model_config["env_prefix"]
    known = [f"{prefix}{name.upper()}" for name in Settings.model_fields]
    unknown = [name for name, value in os.environ.items() if value and name.upper().startswith(prefix)]
    if unknown := sorted(name for name in unknown if name.upper() not in known):
        raise SettingsError("; ".join(f"{name}: no such setting.{hint(name, known)}" for name in unknown))
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        wrong = (f"{prefix}{str(item['loc'][0]).upper()}: {explain(item)}" for item in error.errors())
        raise SettingsError("; ".join(wrong)) from error
