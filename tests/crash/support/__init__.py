"""What the crash tests share: processes, recipients that outlive them, the service that dies, what is looked at after."""
