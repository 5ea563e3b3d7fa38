"""The articles of the simulated chain, which sells furniture and household goods."""

from dataclasses import dataclass

from services.domain.invoice import LineItem


@dataclass(frozen=True, slots=True)
class Line:
    """One article in one quantity. All invoices share the record, so it must not change."""

    record: LineItem
    cents: int


@dataclass(frozen=True, slots=True)
class Article:
    """One article in its usual quantities, in ascending order."""

    code: str
    lines: tuple[Line, ...]


_GOODS: tuple[tuple[tuple[int, ...], tuple[tuple[str, int], ...]], ...] = (
    # the usual quantities in ascending order, then descriptions and prices in cents, the most popular article first
    ((1, 2, 4, 4, 6), (
        ("Dining chair", 1_849_00), ("Folding chair", 799_00), ("Bar stool", 1_149_50), ("Stool", 649_00),
        ("Rocking chair", 4_995_00), ("Study chair", 3_250_00), ("Garden bench", 5_499_00),
    )),
    ((1, 1, 1, 1, 2), (
        ("Coffee table", 2_499_00), ("Bookshelf, 5 boards", 3_799_00), ("TV unit", 6_990_00), ("Shoe rack", 1_349_00),
        ("Bedside table", 1_899_00), ("Sofa bed", 17_950_00), ("Wardrobe, two doors", 14_499_00),
        ("Dining table for six", 12_999_00), ("Queen bed, sheesham", 24_500_00), ("Swing, teak", 31_250_00),
    )),
    ((1, 1, 2, 2, 4), (
        ("Bed sheet, double", 699_00), ("Pillow", 349_00), ("Jaipur quilt", 1_799_00), ("Cotton dohar", 1_099_00),
        ("Towel, large", 449_50), ("Foam mattress", 7_499_00), ("Latex mattress", 13_990_00), ("Slipcover", 1_249_00),
    )),
    ((1, 2, 2, 4, 6), (
        ("Eyelet curtain", 599_00), ("Sheer curtain", 449_00), ("Pleated curtain", 899_00), ("Cafe curtain", 329_50),
        ("Curtain rod", 499_00), ("Window scarf", 274_75), ("Bamboo blind", 1_149_00),
    )),
    ((2, 4, 6, 6, 12), (
        ("Steel tumbler", 89_50), ("Water glass", 64_25), ("Dinner plate", 219_00), ("Tea cup and saucer", 174_50),
        ("Katori bowl", 79_75), ("Wine glass", 199_00), ("Copper mug", 399_00), ("Thali, three parts", 349_00),
    )),
    ((1, 1, 1, 2, 3), (
        ("Chef's knife", 549_00), ("Grater", 149_75), ("Ladle", 119_50), ("Pressure cooker, 5 l", 2_249_00),
        ("Tawa, cast iron", 999_00), ("Lunch box, four tiers", 629_00), ("Masala dabba", 849_50), ("Mason jar", 139_00),
        ("Rolling pin", 99_25), ("Bottle opener", 74_50), ("Idli steamer", 1_199_00),
    )),
    ((1, 1, 1, 1, 2), (
        ("LED lamp, portable", 749_00), ("Wall clock", 599_50), ("Brass diya", 189_00), ("Photo frame", 249_25),
        ("Door mat", 199_75), ("Table lamp", 1_399_00), ("Dhurrie, 4 x 6", 2_799_00), ("Chiming clock", 3_650_00),
    )),
)  # fmt: skip


def departments() -> tuple[tuple[Article, ...], ...]:
    """The articles of each department, the most popular first."""
    return tuple(
        tuple(
            _article(f"{100 * number + position}", description, cents, quantities)
            for position, (description, cents) in enumerate(goods, start=1)
        )
        for number, (quantities, goods) in enumerate(_GOODS, start=1)
    )


def _article(code: str, description: str, cents: int, quantities: tuple[int, ...]) -> Article:
    lines = {
        quantity: Line(
            LineItem(
                ItemCode=code,
                ItemDescription=description,
                ItemPrice=cents / 100,
                ItemQty=quantity,
                TotalValue=cents * quantity / 100,
            ),
            cents * quantity,
        )
        for quantity in quantities
    }
    return Article(code, tuple(lines[quantity] for quantity in quantities))
