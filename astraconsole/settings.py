"""Settings: read once from the environment; a bad value stops the start with its name. README lists every one."""

import sysconfig
from pathlib import Path

import dj_database_url
from environs import Env, ValidationError, validate

BASE_DIR = Path(__file__).resolve().parent.parent
env = Env()
POSITIVE = validate.Range(min=0, min_inclusive=False, error="must be greater than 0")
NOT_NEGATIVE = validate.Range(min=0, error="must not be negative")
NOT_ONE = validate.NoneOf((1,), error="must be 0 or at least 2")
POSTGRES = validate.Regexp("(postgres(ql)?://.*)?$", error="must begin with postgres://")
REDIS = validate.Regexp("((rediss?|unix)://.*)?$", error="must begin with redis://, rediss:// or unix://")
HTTP = validate.Regexp("(https?://[^/].*)?$", error="must begin with http:// or https://")
FRACTION = validate.Range(0, 1, min_inclusive=False, max_inclusive=False, error="must be between 0 and 1")
PATH = validate.Regexp("/[!-~]*$", error="must begin with /")


def is_list_of_texts(value: object) -> None:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValidationError("must be a JSON list of texts")


REACH = validate.OneOf(("public", "private", "loopback"), error="must be one of {choices}")
LEVEL = validate.OneOf(("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), error="must be one of {choices}")

DEBUG = env.bool("DEBUG", False)
SECRET_KEY = env.str("SECRET_KEY", "")  # Django refuses to use an empty one
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", [])

DB_POOL_SIZE = env.int("DB_POOL_SIZE", 16, validate=NOT_NEGATIVE)  # 0: no pool, a connection a request
DATABASES = {
    "default": {
        **dj_database_url.parse(env.str("DATABASE_URL", "", validate=POSTGRES) or "postgres:///astra"),
        "OPTIONS": {
            # One pool per process: its threads come and go, and a connection each would stay behind.
            "pool": DB_POOL_SIZE > 0 and {"min_size": 1, "max_size": DB_POOL_SIZE, "timeout": 20},
            "prepare_threshold": 5,  # else `astraconsole.sql` could not have its statements prepared either
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# redis://… or unix://:password@/path?db=0
REDIS_URL = env.str("REDIS_URL", "", validate=REDIS) or "redis://127.0.0.1:6379/0"
CHANNEL_PREFIX = "astra"
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": CHANNEL_PREFIX},
    }
}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_htmx",
    "heroicons",
    "ninja",  # its documentation page, from this server and not from elsewhere
    "astraconsole",
    "astraconsole.tenancy",
    "machines",
    "runs",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "astraconsole.security.ContentSecurityPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "astraconsole.web.ErrorMiddleware",
]
ROOT_URLCONF = "astraconsole.urls"
ASGI_APPLICATION = "astraconsole.asgi.application"
AUTH_USER_MODEL = "tenancy.User"
LOGIN_URL = "/sign-in"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = LOGIN_URL
CSRF_FAILURE_VIEW = "astraconsole.web.csrf_failure"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["heroicons.templatetags.heroicons", "astraconsole.templatetags.console"],
        },
    }
]

STATIC_URL = "/static/"
STATIC_ROOT = env.str("STATIC_ROOT", None)  # where `collectstatic` put them, when a front server is to serve them
# Charts are drawn by the plotly.min.js of its package, which is found without importing that.
PLOTLY = Path(sysconfig.get_path("purelib"), "plotly", "package_data")
STATICFILES_DIRS = [BASE_DIR / "static", ("plotly", PLOTLY)]
WHITENOISE_USE_FINDERS = True  # nothing to collect before the first start
TIME_ZONE = "UTC"
USE_TZ = True
LANGUAGE_CODE = "en-us"
HTTP_THREADS = env.int("HTTP_THREADS", 32, validate=POSITIVE)  # requests that one daphne answers at a time
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if env.bool("BEHIND_TLS_PROXY", False) else None
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.bool("BEHIND_TLS_PROXY", False)
SESSION_COOKIE_SAMESITE = "Lax"

# Durations are seconds, sizes bytes.
MACHINE_LEASE_SECONDS = env.float("MACHINE_LEASE_SECONDS", 30, validate=POSITIVE)
MACHINE_HEARTBEAT_SECONDS = env.float("MACHINE_HEARTBEAT_SECONDS", 5, validate=POSITIVE)
STOP_GRACE_SECONDS = env.float("STOP_GRACE_SECONDS", 30, validate=NOT_NEGATIVE)
RESTART_BACKOFF_SECONDS = env.float("RESTART_BACKOFF_SECONDS", 10, validate=NOT_NEGATIVE)
RESTART_BACKOFF_MAX_SECONDS = env.float("RESTART_BACKOFF_MAX_SECONDS", 300, validate=NOT_NEGATIVE)
RESTART_BUDGET = env.int("RESTART_BUDGET", 10, validate=NOT_NEGATIVE)
RESTART_RESET_SECONDS = env.float("RESTART_RESET_SECONDS", 600, validate=NOT_NEGATIVE)
GANG_BARRIER_SECONDS = env.float("GANG_BARRIER_SECONDS", 900, validate=POSITIVE)
MACHINE_CORDON_FAILURES = env.int("MACHINE_CORDON_FAILURES", 3, validate=[NOT_NEGATIVE, NOT_ONE])
MACHINE_CORDON_SECONDS = env.float("MACHINE_CORDON_SECONDS", 60, validate=POSITIVE)
ENDED_RUNS_KEEP_SECONDS = env.int("ENDED_RUNS_KEEP_SECONDS", 0, validate=NOT_NEGATIVE)  # 0: until they are deleted
DELETED_RUNS_KEEP_SECONDS = env.int("DELETED_RUNS_KEEP_SECONDS", 30 * 86400, validate=NOT_NEGATIVE)  # 0: for ever
LOG_FOLLOW_SECONDS = env.float("LOG_FOLLOW_SECONDS", 4, validate=POSITIVE)
LOG_KEEP_BYTES = env.int("LOG_KEEP_BYTES", 1024**3, validate=POSITIVE)
METRICS_SAMPLE_SECONDS = env.float("METRICS_SAMPLE_SECONDS", 10, validate=POSITIVE)
METRICS_RAW_SECONDS = env.float("METRICS_RAW_SECONDS", 6 * 3600, validate=POSITIVE)
METRICS_MINUTE_SECONDS = env.float("METRICS_MINUTE_SECONDS", 7 * 86400, validate=POSITIVE)
METRICS_TEN_MINUTE_SECONDS = env.float("METRICS_TEN_MINUTE_SECONDS", 90 * 86400, validate=POSITIVE)
METRICS_URL = env.str("METRICS_URL", "", validate=HTTP).rstrip("/")  # empty: the console's own database
METRICS_TOKEN = env.str("METRICS_TOKEN", "")  # lets a Prometheus read /metrics; empty: only staff may
ENGINE_IMAGE = env.str("ENGINE_IMAGE", "")  # serves models beside runs; empty: runs that ask for it are refused
ENGINE_COMMAND = env.str("ENGINE_COMMAND", "")  # empty: the image's own
ENGINE_ARGS = env.json("ENGINE_ARGS", [], validate=is_list_of_texts)
ENGINE_HEALTH_PATH = env.str("ENGINE_HEALTH_PATH", "/health", validate=PATH)
ENGINE_START_SECONDS = env.float("ENGINE_START_SECONDS", 1800, validate=POSITIVE)
ENGINE_SHARE = env.float("ENGINE_SHARE", 0.5, validate=FRACTION)  # of its worker's cores and memory
WEBHOOK_REACH = env.str("WEBHOOK_REACH", "public", validate=REACH)
WEBHOOK_GIVE_UP_SECONDS = env.float("WEBHOOK_GIVE_UP_SECONDS", 3 * 86400, validate=POSITIVE)
WEBHOOK_LOG_SECONDS = env.float("WEBHOOK_LOG_SECONDS", 30 * 86400, validate=POSITIVE)
CALL_TIMEOUT_SECONDS = env.float("CALL_TIMEOUT_SECONDS", 10, validate=POSITIVE)
SCHEDULER_TICK_SECONDS = env.float("SCHEDULER_TICK_SECONDS", 5, validate=POSITIVE)
SCHEDULER_SLOW_SECONDS = env.float("SCHEDULER_SLOW_SECONDS", 2, validate=POSITIVE)
SCHEDULER_RECORDINGS = env.str("SCHEDULER_RECORDINGS", "")  # a folder; empty: surprising passes are only logged

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": env.str("LOG_LEVEL", "INFO", validate=LEVEL)},
    "loggers": {
        "httpx": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},  # each task twice, otherwise
        "celery.app.trace": {"level": "WARNING"},
        "django.request": {"level": "ERROR"},
        "daphne": {"level": "WARNING"},
        "django.channels.server": {"level": "WARNING"},
    },
}
