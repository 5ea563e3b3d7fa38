"""The points that returns of single items take back: campaigns, excluded items, taxes and exchanges."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from services.domain.account.lots import Terms
from services.domain.account.model import Account, PastPurchase
from services.domain.events import Line, Purchase
from services.domain.programme import DAY, Campaign, Programme, TaxBasis
from tests.unit.services.domain.purchases_and_returns import after, back, buy, cancelled, lines, taken

B_THREE_TIMES = Programme(campaigns=(Campaign("B three times", items=frozenset("B"), multiplier=Decimal(3)),))
MILK_THREE_TIMES = Programme(campaigns=(Campaign("milk", items=frozenset({"milk"}), multiplier=Decimal(3)),))
MILK, BREAD = Line("milk", Decimal(40)), Line("bread", Decimal(60))
TAXABLE = Programme(tax_basis=TaxBasis.TAXABLE)


def test_return_of_an_item_takes_its_campaign_s_points():
    """Milk earns three times the points of bread, so its return takes three times as much."""
    programme, bought = MILK_THREE_TIMES, buy("100", lines=(MILK, BREAD))

    assert [3_60] == [entry.points for entry in after(bought, programme=programme).entries]
    for line, points in (MILK, 2_40), (BREAD, 1_20):
        assert [points] == taken(after(bought, back(line.value, lines=(line,)), programme=programme))
    assert [3_60] == taken(after(bought, back("100"), programme=programme))
    assert [1_80, 1_80] == taken(after(bought, back("70"), back("30", number="rest", time=3), programme=programme))


def test_return_that_names_no_items_keeps_the_points_of_the_first_ones():
    """99.00 of 100.00 come back. The rest is the milk, which keeps its campaign."""
    bought = buy("100", lines=lines(milk=1, bread=99))

    assert [1_98] == taken(after(bought, back("99"), programme=MILK_THREE_TIMES))


def test_returned_lines_may_be_negative():
    """The lines of a negative invoice may be negative. The sign has no meaning."""
    bought = buy("100", lines=(MILK, BREAD))

    for value in (40, -40):
        assert [2_40] == taken(after(bought, back("40", lines=lines(milk=value)), programme=MILK_THREE_TIMES))


def test_what_stays_keeps_the_campaign_of_its_shop_and_day():
    """The purchase arrives on the day after the campaign, and half of it comes back to another shop."""
    first_day = date(1970, 1, 1)
    campaign = Campaign("opening", first_day, last_day=first_day, stores=frozenset({"here"}), multiplier=Decimal(3))
    bought = buy("100", time=DAY, created_time=1)
    half = replace(back("50", time=DAY + 2), store_id="there")

    assert [3_00] == taken(after(bought, half, programme=Programme(campaigns=(campaign,))))


def test_bonus_goes_with_what_it_was_given_for():
    """The bonus for milk stays until the milk is returned."""
    programme = Programme(campaigns=(Campaign("milk", items=frozenset({"milk"}), bonus=50),))
    bought = buy("100", lines=lines(milk=10, bread=90))

    assert [1_80] == taken(after(bought, back("90", lines=lines(bread=90)), programme=programme))
    assert [70] == taken(after(bought, back("10", lines=lines(milk=10)), programme=programme))


def test_return_of_an_item_for_less_than_its_price():
    """The shop keeps half of the money, and the customer half of the points."""
    assert [1_00] == taken(after(buy("100", lines=lines(A=100)), back("50", lines=lines(A=-100))))


def test_return_never_earns():
    """The customer pays for a discount that a return takes back. The rest could earn more than the whole."""
    bought = buy("100", lines=lines(milk=40, off=-30, bread=90))
    outcome = after(bought, back("-30", lines=cancelled(off=30)))

    assert [0] == taken(outcome)
    assert 2_00 == outcome.account.total == outcome.account.purchases["bought"].earned


def test_return_of_excluded_items_takes_nothing():
    """The gift card of 60.00 earned nothing, and the milk for 40.00 earned 0.80."""
    programme, gift_card = Programme(excluded_items=frozenset({"gift-card"})), Line("gift-card", Decimal(60))
    bought = buy("100", lines=(MILK, gift_card))

    for line, points in (MILK, 80), (gift_card, 0):
        assert [points] == taken(after(bought, back(line.value, lines=(line,)), programme=programme))


def test_return_of_an_item_beside_a_discount_takes_its_points():
    """The invoice has A, B with three times the points, and a discount. 150.00 earned 7.00, of which 75.00 of A are
    1.50.
    """
    bought = buy("150", lines=lines(A=100, B=100, discount=-50))

    assert [1_50] == taken(after(bought, back("75", lines=lines(A=-75)), programme=B_THREE_TIMES))


def test_return_of_an_item_without_a_code_does_not_show_what_is_left():
    """At most 75.00 of the invoice are left, of which 50.00 can be of B, which has three times the points."""
    bought = buy("150", lines=lines(**{"": 100}, B=100, discount=-50))

    assert [3_50] == taken(after(bought, back("75", lines=lines(**{"": -75})), programme=B_THREE_TIMES))


@pytest.mark.parametrize(
    ("sold", "returned", "points"),
    [
        ({"": 100}, {"B": -100}, 2_00),
        ({"A": 60, "": 40}, {"B": -40}, 80),
        ({"A": 60, "": 40}, {"A": -60, "B": -40}, 2_00),
        ({"A": 110, "": -10}, {"B": -100}, 0),
    ],
    ids=["no line has a code", "one line has no code", "both items", "only a discount has no code"],
)
def test_the_amount_decides_if_something_was_sold_without_a_code(sold, returned, points):
    """The returned item can be the one that was sold without a code. A discount is not such an item."""
    amount = -sum(returned.values())

    assert [points] == taken(after(buy("100", lines=lines(**sold)), back(amount, lines=lines(**returned))))


def test_an_item_comes_back_once_beside_a_line_without_a_code():
    """The bag has no code. The second return of A is not a return of B, because the purchase knows the code A."""
    bought = buy("100", lines=lines(**{"A": 60, "B": Decimal("39.9"), "": Decimal("0.1")}))
    returns = (back("60", number=name, time=time, lines=lines(A=-60)) for name, time in (("first", 2), ("again", 3)))

    assert [1_20, 0] == taken(after(bought, *returns))


@pytest.mark.parametrize("times", [(2, 3), (3, 2)])
def test_returns_with_and_without_a_code_in_any_order(times):
    """The purchase still shows that something had no code after a return of all that had none."""
    returns = [
        back("40", number=name, time=time, lines=lines(**{item: -40}))
        for name, item, time in zip(("no code", "B"), ("", "B"), times, strict=True)
    ]
    outcome = after(buy("100", lines=lines(**{"A": 60, "": 40})), *returns)

    assert [80, 80] == taken(outcome)


def test_nothing_stays_of_a_taxed_item_beside_a_cancelled_line_without_a_code():
    """The till rounds the tax of the return in another way, but its line shows that the only item comes back."""
    item, *cancelled = (Line(code, Decimal(value)) for code, value in (("A", 100), ("", 10), ("", -10)))
    bought = buy("100", lines=(item, *cancelled), taxable_amount=Decimal(80))

    assert [1_60] == taken(after(bought, back("100", lines=(item,), taxable_amount=Decimal(79)), programme=TAXABLE))


def test_no_bonus_stays_for_a_hundredth_that_the_till_has_rounded():
    """Half of 84.75 is 42.375. The lines have no code, so they do not show that everything came back."""
    programme = replace(TAXABLE, campaigns=(Campaign("bonus", bonus=5_00),))
    bought = buy("100", lines=lines(**{"": 100}), taxable_amount=Decimal("84.75"))
    half = back("50", number="first", lines=lines(**{"": -50}), taxable_amount=Decimal("-42.37"))
    outcome = after(bought, half, replace(half, invoice_number="other", append_time=3), programme=programme)

    assert 0 == outcome.account.total


def test_the_discount_of_an_item_can_have_the_code_of_the_item():
    """A for 90.00 and B for 50.00. The return of A and its discount leaves B, also if another return has the discount
    of A.
    """
    a, off, b = Line("A", Decimal(100)), Line("A", Decimal(-10)), Line("B", Decimal(50))
    bought = buy("140", lines=(a, off, b))
    taken_back = cancelled(A=10)

    assert [1_80] == taken(after(bought, back("90", lines=(*lines(A=-100), *taken_back))))
    returns = [back("100", lines=lines(A=-100)), back("40", number="B", time=3, lines=(*lines(B=-50), *taken_back))]
    assert 0 == after(bought, *returns).account.total


def test_a_return_that_takes_back_more_than_its_goods_are_worth_takes_nothing():
    """The customer pays 994.00 more, and keeps goods for 1500.00. They earn what the purchase has earned."""
    bought = buy("506", lines=lines(A=1000, B=505, off=-999))
    first = back("-994", lines=(*lines(B=-5), *cancelled(off=999)))
    rest = back("1500", number="rest", time=3, lines=lines(A=-1000, B=-500))

    assert [0, 10_12] == taken(after(bought, first, rest))


def test_returns_take_back_a_discount_in_parts():
    """80.00 earned 1.60. A half comes back, and then a quarter."""
    bought = buy("80", lines=lines(A=100, off=-20))
    half = back("40", lines=(*lines(A=-50), *cancelled(off=10)))
    quarter = back("20", number="quarter", time=3, lines=(*lines(A=-25), *cancelled(off=5)))

    assert [80, 40] == taken(after(bought, half, quarter))


def test_a_positive_line_without_a_negative_price_or_quantity_is_sold():
    """Nothing shows that it takes back the discount, so its points stay. `loyalty conformance` warns."""
    bought = buy("90", lines=lines(A=100, off=-10))

    assert 20 == after(bought, back("90", lines=lines(A=-100, off=10))).account.total
    assert 0 == after(bought, back("90", lines=(*lines(A=-100), *cancelled(off=10)))).account.total


def test_purchase_of_release_0_1_knows_the_items_of_campaigns_only():
    """10.00 of the milk for 40.00 come back, and then 30.00 of the rest."""
    bought = PastPurchase(1, Decimal(100), 3_60, 0, lines=(MILK,))
    account = Account(1, lots={Terms(): 3_60}, purchases={"bought": bought})
    returns = back("10", lines=lines(milk=10)), back("30", number="bread", time=3, lines=lines(bread=30))

    assert [60, 60] == taken(after(*returns, programme=MILK_THREE_TIMES, account=account))


@pytest.mark.parametrize("times", [(2, 3), (3, 2)])
@pytest.mark.parametrize("again", [False, True])
def test_return_without_lines_beside_returns_of_items_in_any_order(times, again):
    """10.00 of B are left, with three times the points. A second return of A takes nothing."""
    returns = [back("40", number="no lines", time=times[0])]
    returns += [back("100", number=f"A{n}", time=times[1], lines=lines(A=-100)) for n in range(1 + again)]
    outcome = after(buy("150", lines=lines(A=100, B=50)), *returns, programme=B_THREE_TIMES)

    assert 60 == outcome.account.total


@pytest.mark.parametrize("value", ["-100", "-1"])
def test_return_of_more_than_its_lines_takes_the_points_of_its_money(value):
    """A line can lack its value. 1.00 of 200.00 is left, so at most the points of 1.00 with the campaign are left."""
    bought = buy("200", lines=lines(A=100, B=100))
    outcome = after(bought, back("199", lines=lines(A=value)), programme=B_THREE_TIMES)

    assert outcome.account.total <= 6


def test_return_on_the_taxable_basis():
    """118.00 with 18.00 of tax earned 2.00. Half of it takes back 1.00, also if the return is read first."""
    bought = buy("118", taxable_amount=Decimal(100))
    half = back("59", taxable_amount=Decimal(-50))

    for returned in (half, replace(half, original_invoice_number=None)):
        assert [1_00] == taken(after(bought, returned, programme=TAXABLE))
    waited = after(replace(half, append_time=1), replace(bought, append_time=2), programme=TAXABLE)
    assert 1_00 == waited.account.total


def test_return_without_an_original_adds_no_points_for_a_negative_taxable_amount():
    """The purchase earned nothing. So the return takes the points of an older purchase."""
    tax_only = buy("100", number="tax only", taxable_amount=Decimal(-5000))
    returned = back("10", original=None, time=3, taxable_amount=Decimal(-9))
    outcome = after(buy("100"), replace(tax_only, append_time=2), returned, programme=TAXABLE)

    assert [18] == taken(outcome)


@pytest.mark.parametrize("order", ["AB", "BA"])
@pytest.mark.parametrize("rules", [{"campaigns": B_THREE_TIMES.campaigns}, {"excluded_items": frozenset("B")}])
def test_return_of_an_item_does_not_depend_on_the_order_of_lines(order, rules):
    """The lines include tax, so they are worth more than the taxable amount. Half of A earned 1.00."""
    half = back("59", taxable_amount=Decimal(-50), lines=lines(A=-59))

    assert [1_00] == taken(after(taxed_purchase(*order), half, programme=replace(TAXABLE, **rules)))


def taxed_purchase(*items):
    """Each item costs 100 and 18 % tax. Lines have gross values."""
    amounts = {"total_amount": Decimal(118) * len(items), "taxable_amount": Decimal(100) * len(items)}
    return Purchase(1, "bought", **amounts, lines=lines(**dict.fromkeys(items, 118)))


def taxed_return(number, time, *items, original="bought"):
    amounts = {"total_amount": Decimal(-118) * len(items), "taxable_amount": Decimal(-100) * len(items)}
    returned = lines(**dict.fromkeys(items, -118))
    return Purchase(time, number, **amounts, original_invoice_number=original, lines=returned)


@pytest.mark.parametrize("times", [(2, 3), (3, 2)])
@pytest.mark.parametrize("items", ["AB", "ABC"])
def test_a_taxed_item_is_returned_once(times, items):
    """Lines have gross values, and the taxable amount is net. The order of the returns does not matter."""
    first, both = taxed_return("first", times[0], "A"), taxed_return("both", times[1], "A", "B")

    outcome = after(taxed_purchase(*items), first, both, programme=TAXABLE)

    assert 4_00 == sum(taken(outcome))


def test_a_taxed_item_without_a_line_is_not_returned():
    """Lines without a value are no lines here. B has such a line."""
    purchase = replace(taxed_purchase("A", "B"), lines=lines(A=118))

    assert [2_00] == taken(after(purchase, taxed_return("back", 2, "A"), programme=TAXABLE))


def exchanged(number, original, time=1):
    """A comes back, and a bed for the same money is sold."""
    return Purchase(time, number, Decimal(0), original_invoice_number=original, lines=lines(A=-50, bed=50))


def test_nothing_stays_of_a_taxed_item_that_came_in_an_exchange():
    exchange = exchanged("exchange", original="bought", time=2)
    exchange = replace(exchange, lines=lines(A=-118, bed=118), taxable_amount=Decimal(0))
    bed_back = taxed_return("back", 3, "bed", original="exchange")

    outcome = after(taxed_purchase("A", "B"), exchange, bed_back, programme=TAXABLE)

    assert 0 == outcome.account.purchases["exchange"].earned


@pytest.mark.parametrize("number", ["a exchange", "z exchange"])
def test_exchange_in_the_millisecond_of_the_first_purchase(number):
    """A till sends its backlog at once. The customer type is not eligible, so the bed gets no entry."""
    exchange = replace(exchanged(number, original="bought"), customer_type="NONE")
    outcome = after(buy("50", lines=lines(A=50)), exchange)

    assert [1_00, -1_00] == [entry.points for entry in outcome.entries]


@pytest.mark.parametrize("original", [None, "z exchange"])
def test_exchange_comes_before_a_return_of_the_same_millisecond(original):
    """The exchange opens the account from which the return takes the points of the bed."""
    bed_back = Purchase(1, "a return", Decimal(-50), customer_type="PRIME", original_invoice_number=original)

    assert 0 == after(exchanged("z exchange", original="older"), bed_back).account.total
