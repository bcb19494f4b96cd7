"""Makes applications with the `svix` package as it comes from PyPI: svix_calls.py SERVER KEY:NAME...

The key `-` leaves it to the client to make one up. A line is printed for each: the application, or the client's own error.
"""
import sys

from svix.api import ApplicationCreateOptions, ApplicationIn, Svix, SvixOptions
from svix.exceptions import HttpError

server, *calls = sys.argv[1:]
svix = Svix("testsk_1.eu", SvixOptions(server_url=server, timeout=3.0))
for call in calls:
    key, name = call.split(":")
    options = ApplicationCreateOptions(idempotency_key=None if key == "-" else key)
    try:
        made = svix.application.create(ApplicationIn(name=name), options)
        print(made.id, made.name)
    except HttpError as error:
        print("HttpError", error.status_code, error.code)
    except Exception as error:
        print(type(error).__name__)
