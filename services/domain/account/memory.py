"""Decides how long an account remembers its purchases, returns and commands."""

from services.domain.account.model import EVENT_MEMORY, RETURN_MEMORY, Account, PastPurchase, PastReturn
from services.domain.programme import Programmes


def forget(account: Account, now: int, programmes: Programmes) -> None:
    """Removes purchases, returns and commands that the account does not have to remember any more."""
    # Purchases and commands are in the order in which the query read them. This is nearly the order of their times. So
    # each of these loops ends at the first one that remains. If an older one comes after it, a later call removes it.
    while account.purchases:
        number = next(iter(account.purchases))
        # A return of the last moment can come after newer events, or later from the index of invoices.
        if is_remembered(account.purchases[number], now - EVENT_MEMORY, programmes):
            break
        del account.purchases[number]
        if number in account.returns:
            account.returns[number] = account.returns[number]._replace(is_half=True)
    while account.commands:
        command_id, command = next(iter(account.commands.items()))
        if command.append_time + EVENT_MEMORY >= now:
            break
        del account.commands[command_id]
    # An account can forget a return that waits before an older return that is decided. So look at all returns.
    for number in [each for each, past in account.returns.items() if not is_remembered(past, now, programmes)]:
        del account.returns[number]


def remembers(account: Account, invoice_number: str, now: int, programmes: Programmes) -> bool:
    """Whether the account still knows the invoice at that time. ``forget`` may remove it later."""
    pasts = account.purchases.get(invoice_number), account.returns.get(invoice_number)
    return any(past is not None and is_remembered(past, now, programmes) for past in pasts)


def is_remembered(past: PastPurchase | PastReturn, now: int, programmes: Programmes) -> bool:
    """Whether a number of that time still means this invoice. After it, a till can use the number for a new one."""
    programme = programmes.version(past.programme_version)
    if isinstance(past, PastPurchase):
        memory = max(EVENT_MEMORY, programme.purchase_memory)
    else:
        memory = max(RETURN_MEMORY, programme.return_window)
        is_decided = not past.original
        if is_decided:
            # The purchase may have arrived at the end of this time, and the copy that the index forwards arrives later.
            memory += EVENT_MEMORY
    return now <= past.append_time + memory
