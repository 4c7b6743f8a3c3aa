"""A web page and an HTTP endpoint for predictors; the extra ``serve`` has the packages."""

from ffn.serve.web.app import create_app
from ffn.serve.web.connections import bounded_protocol
from ffn.serve.web.page import mount_page
from ffn.serve.web.service import Limits, Query, Service
