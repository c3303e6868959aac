"""`journal demo`: a service is killed at random moments, and the recipient counts what reached it.

One round is three trials side by side, each with a recipient and a service in processes of their own:

    command       the options, and which exit status a report gives
    stage         runs the trials: what the supervisor does for each of them
    supervisor    feeds a service line by line, kills it at drawn moments, starts it again until all is done
    children      every process that was started, and their end
    feed          what supervisor and service say to each other
    service       the service that embeds the journal: the one file to read for how the journal is used
    naive         the same service without a journal, in two ways that look right
    recipient     the other system, over HTTP; its memory is `store`, its delays are `latency`
    client        how a service talks to it
    kinds         three kinds of recipients, and what the journal promises for each
    deliveries    the input
    report        from the recipient's store and the journal to counts and a verdict; `table` prints them

Nothing here is imported by the library.
"""
