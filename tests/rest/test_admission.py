"""Which connection is closed when clients leave more unread than is kept."""

from dataclasses import dataclass

from tickwright.rest.admission import Admission, ListenerLimits

LIMITS = ListenerLimits(unread_bytes=100)


@dataclass(eq=False)
class Unread:
    """A connection and its transport, with bytes that its client has not read."""

    unread: int
    has_key: bool = False
    waits_for_client: bool = True
    closed: bool = False

    @property
    def transport(self) -> "Unread":
        """The same."""
        return self

    def get_write_buffer_size(self) -> int:
        """Return what is not read."""
        return 0 if self.closed else self.unread

    def abort(self) -> None:
        """Close."""
        self.closed = True


def waiting(admission: Admission, address: str, unread: int, *, has_key: bool = False) -> Unread:
    """Let a client of ``address`` leave so many bytes unread."""
    made = Unread(unread, has_key)
    admission.admit(made, address)
    admission.note_unread(made)
    return made


def test_the_address_with_most_unread_bytes_goes_first_and_of_it_the_connection_that_waits_longest() -> None:
    """A few clients of one address leave others alone; each is closed until the rest is below the bound."""
    admission = Admission(LIMITS)
    one = waiting(admission, "10.0.0.1", 40)
    first, second = waiting(admission, "10.0.0.2", 30), waiting(admission, "10.0.0.2", 30)
    assert not first.closed
    third = waiting(admission, "10.0.0.2", 15)
    assert [found.closed for found in (one, first, second, third)] == [False, True, False, False]
    assert admission.unread_bytes == 85
    assert admission.take_counts() == {"unread": 1}


def test_a_client_that_has_read_begins_to_wait_again() -> None:
    """A client that reads steadily is closed after one that does not."""
    admission = Admission(LIMITS)
    reads, waits = waiting(admission, "10.0.0.1", 45), waiting(admission, "10.0.0.1", 45)
    admission.note_read(reads)
    assert admission.unread_bytes == 45
    admission.note_unread(reads)
    waiting(admission, "10.0.0.1", 45)
    assert (reads.closed, waits.closed) == (False, True)


def test_answers_to_a_key_that_are_not_read_close_none_without_a_key() -> None:
    """A client with a key of any role does not keep browsers from loading the page."""
    admission = Admission(LIMITS)
    unread = [waiting(admission, f"10.0.0.{number}", 30, has_key=True) for number in range(3)]
    page = waiting(admission, "10.0.1.1", 40)
    assert (page.closed, [one.closed for one in unread]) == (False, [True, False, False])


def test_answers_to_keys_go_last() -> None:
    """Clients without a key close no answer to a key, from however many addresses they come."""
    admission = Admission(LIMITS)
    kept = waiting(admission, "10.0.0.1", 90, has_key=True)
    strangers = [waiting(admission, f"10.0.1.{number}", 9) for number in range(5)]
    assert not kept.closed
    assert [one.closed for one in strangers] == [True, True, True, True, False]


def test_clients_without_a_key_close_no_answers_to_keys_beside_their_half() -> None:
    """They close one another, the address with most unread bytes first."""
    admission = Admission(LIMITS)
    kept = [waiting(admission, "10.0.0.1", 22, has_key=True) for _ in range(2)]
    strangers = [waiting(admission, f"10.0.1.{number}", 11 + number) for number in range(8)]
    assert not any(one.closed for one in kept)
    assert admission.unread_bytes <= 100
    assert not strangers[0].closed


def test_the_only_one_that_is_unread_is_kept() -> None:
    """An answer larger than the bound arrives; what else is unread makes room for it."""
    admission = Admission(LIMITS)
    small, large = waiting(admission, "10.0.0.1", 60), waiting(admission, "10.0.0.2", 500, has_key=True)
    assert (small.closed, large.closed) == (True, False)


def test_a_closed_connection_is_not_counted() -> None:
    """However it ended, and what is closed begins no more waiting."""
    admission = Admission(LIMITS)
    one = waiting(admission, "10.0.0.1", 60)
    admission.forget(one)
    admission.note_unread(one)
    assert admission.unread_bytes == 0
