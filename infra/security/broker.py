"""The settings of a secured broker and its clients, from the folder of certificates and passwords."""

from dataclasses import dataclass

from infra.security.folder import SecurityFolder
from schemas.access import ADMIN
from services.settings import Settings


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """The settings of both sides. infra/kafka/secured.properties has the other settings of the broker."""

    folder: SecurityFolder

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the broker that name files."""
        return {
            "ssl.keystore.location": str(self.folder.broker),
            "ssl.truststore.location": str(self.folder.authority),
        }

    @property
    def first_user(self) -> str:
        """The super user for ``StorageTool format --add-scram``. It creates the other users after the first start."""
        return f"SCRAM-SHA-512=[name={ADMIN},password={self.folder.password(ADMIN).read_text(encoding='utf-8')}]"

    def settings_of(self, user: str, settings: Settings) -> Settings:
        """The settings with the credentials of a user."""
        secured = {
            "kafka_security_protocol": "SASL_SSL",
            "kafka_ssl_ca_location": self.folder.authority,
            "kafka_sasl_password_file": self.folder.password(user),
            "kafka_sasl_username": user,
        }
        return settings.model_copy(update=secured)
