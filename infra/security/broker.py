"""What a secured broker, and whoever speaks to it, takes from the folder of certificates and passwords."""

from dataclasses import dataclass

from infra.security.folder import SecurityFolder
from schemas.access import ADMIN
from services.settings import Settings


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """The settings of both sides; infra/kafka/secured.properties has the broker's that are the same everywhere."""

    folder: SecurityFolder

    @property
    def properties(self) -> dict[str, str]:
        """The broker's files."""
        return {
            "ssl.keystore.location": str(self.folder.broker),
            "ssl.truststore.location": str(self.folder.authority),
        }

    @property
    def first_user(self) -> str:
        """The super user as ``StorageTool format --add-scram`` takes it: there from the first start, to make others."""
        return f"SCRAM-SHA-512=[name={ADMIN},password={self.folder.password(ADMIN).read_text(encoding='utf-8')}]"

    def settings_of(self, user: str, settings: Settings) -> Settings:
        """The same settings, with the user's credentials in them."""
        secured = {
            "kafka_security_protocol": "SASL_SSL",
            "kafka_ssl_ca_location": self.folder.authority,
            "kafka_sasl_password_file": self.folder.password(user),
            "kafka_sasl_username": user,
        }
        return settings.model_copy(update=secured)
