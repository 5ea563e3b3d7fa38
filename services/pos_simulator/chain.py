"""The simulated chain: its shops and tills, and its customers.

The chain depends only on its size and not on the seed. Another seed gives another day with the same shops and
customers.
"""

from dataclasses import dataclass
from functools import cached_property

from services.domain.invoice import DeliveryAddress

LARGEST_CHAIN = 9_000
"""The ids of shops have four digits, as in the recorded invoices."""

TILLS_PER_STORE = 5
CASHIERS_PER_STORE = 12

# It is coprime to 2**32 and to the number of cards. So the products modulo these numbers are unique and unordered.
_SCATTER = 2_654_435_761
_CARDS = 9_000_000_000

_PLACES = (
    # city, state, first three digits of its PIN codes (India Post)
    ("Mumbai", "Maharashtra", "400"), ("Pune", "Maharashtra", "411"), ("Nagpur", "Maharashtra", "440"),
    ("New Delhi", "Delhi", "110"), ("Bengaluru", "Karnataka", "560"), ("Mysuru", "Karnataka", "570"),
    ("Chennai", "Tamil Nadu", "600"), ("Coimbatore", "Tamil Nadu", "641"), ("Hyderabad", "Telangana", "500"),
    ("Vijayawada", "Andhra Pradesh", "520"), ("Kolkata", "West Bengal", "700"), ("Ahmedabad", "Gujarat", "380"),
    ("Surat", "Gujarat", "395"), ("Jaipur", "Rajasthan", "302"), ("Lucknow", "Uttar Pradesh", "226"),
    ("Varanasi", "Uttar Pradesh", "221"), ("Bhopal", "Madhya Pradesh", "462"), ("Indore", "Madhya Pradesh", "452"),
    ("Patna", "Bihar", "800"), ("Kochi", "Kerala", "682"), ("Bhubaneswar", "Odisha", "751"),
    ("Guwahati", "Assam", "781"),
)  # fmt: skip
_STREETS = (
    "Station Road", "MG Road", "Gandhi Nagar", "Nehru Street", "Temple Road", "Lake View Road", "Park Street",
    "Civil Lines", "Ring Road", "Market Yard", "College Road", "Shivaji Path", "Rose Garden Lane", "Old Mill Road",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Store:
    """A shop with the ids of its tills and cashiers."""

    store_id: str
    tills: tuple[str, ...]
    cashiers: tuple[str, ...]
    name: str
    city: str
    state: str


@dataclass(frozen=True, slots=True)
class Shopper:
    """A customer with a card.

    Attributes:
        stores: the shops of ten typical visits.
        address: all invoices of the customer share it, so it must not change.
    """

    card: str
    stores: tuple[Store, ...]
    address: DeliveryAddress


class Chain:
    """The shops and customers of a chain. A customer is created at the first visit."""

    def __init__(self, stores: int) -> None:
        self._size = stores
        self._shoppers: dict[int, Shopper] = {}

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        return tuple(_store(number) for number in range(self._size))

    def shopper(self, number: int) -> Shopper:
        """The customer with this number, from 0."""
        shopper = self._shoppers.get(number)
        if shopper is None:
            shopper = self._shoppers[number] = self._new_shopper(number)
        return shopper

    def _new_shopper(self, number: int) -> Shopper:
        scattered = number * _SCATTER % 2**32
        nearest = scattered % self._size
        # Six visits in the nearest shop, three in the next one, one elsewhere.
        others = ((nearest + 1) % self._size, (nearest + 2 + scattered // 7 % 5) % self._size)
        visits = (nearest,) * 6 + (others[0],) * 3 + (others[1],)
        card = str(1_000_000_000 + number * _SCATTER % _CARDS)
        return Shopper(card, tuple(self.stores[store] for store in visits), _address(scattered, nearest))


def _store(number: int) -> Store:
    store_id = f"STR{1000 + number * 7919 % LARGEST_CHAIN}"
    tills = tuple(f"POS{100 + (number * TILLS_PER_STORE + till) % 900}" for till in range(TILLS_PER_STORE))
    cashiers = tuple(
        f"OAS{100 + (number * CASHIERS_PER_STORE + cashier) % 900}" for cashier in range(CASHIERS_PER_STORE)
    )
    city, state, _ = _PLACES[number % len(_PLACES)]
    return Store(store_id, tills, cashiers, f"{city} {number // len(_PLACES) + 1}", city, state)


def _address(scattered: int, store: int) -> DeliveryAddress:
    """An address in the city of the shop."""
    city, state, pin = _PLACES[store % len(_PLACES)]
    street = _STREETS[scattered // 11 % len(_STREETS)]
    return DeliveryAddress(
        AddressLine=f"Flat No. {1 + scattered // 13 % 980}, {street}",
        City=city,
        State=state,
        PinCode=f"{pin}{1 + scattered // 17 % 99:03d}",
        ContactNumber=str(7_000_000_000 + scattered * 31 % 3_000_000_000),
    )
