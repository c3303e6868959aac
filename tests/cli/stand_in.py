"""A service to be supervised: `python -m tests.cli.stand_in HOW DIRECTORY ...` acknowledges and does nothing else.

HOW is `well`; `crash`, which fails at the second delivery; `silent`, which never says anything; or `busy`, which
does not end with its input. The deliveries that were taken over are lines of `done.txt`.
"""

import signal
import sys
from pathlib import Path

from journal.cli.demo import feed


def main(how: str, directory: str, *_rest: str) -> None:
    if how == "silent":
        signal.pause()
    path = Path(directory) / "done.txt"
    feed.say(feed.Started())
    feed.say(feed.Opened(unfinished=1))
    taken = path.read_text().splitlines() if path.exists() else []
    for delivery in feed.receive():
        if how == "crash" and taken:
            sys.exit("this stand-in crashes")
        repeated = delivery.delivery in taken
        taken.append(delivery.delivery)
        # Appended by one write: a kill leaves all of it or nothing.
        with path.open("a") as file:
            file.write(f"{delivery.delivery}\n")
        feed.say(feed.Acknowledged(repeated=repeated))
    if how == "busy":
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
