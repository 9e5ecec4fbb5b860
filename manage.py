#!/usr/bin/env python
"""Django's command line: `manage.py up` starts a whole console."""

import os
import sys

from django.core.management import execute_from_command_line
from environs import EnvError

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "astraconsole.settings")
    try:
        execute_from_command_line(sys.argv)
    except EnvError as error:
        sys.exit(str(error))
