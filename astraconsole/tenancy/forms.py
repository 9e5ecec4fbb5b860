"""Forms of accounts and members, and the sign-in forms of the console and of staff's admin, which limit tries."""

from typing import Any

from django import forms
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm

from astraconsole import limits
from astraconsole.errors import TooManyRequests
from astraconsole.limits import Limit
from astraconsole.tenancy.permissions import ROLE_CHOICES, Role
from astraconsole.web import client_address

# By name alone many more than by name and address: else anybody could keep a person out.
FAILED_PAIR = Limit("sign-in-pair", 10, 600, "too many failed sign-ins with this name")
FAILED_NAME = Limit("sign-in-name", 100, 600, "too many failed sign-ins with this name")
FAILED_ADDRESS = Limit("sign-in-address", 50, 600, "too many failed sign-ins from this address")


class LimitedTries(AuthenticationForm):
    """Failed sign-ins are counted by address and by name; beyond the limits the password is not even looked at."""

    too_many = False

    def clean(self) -> dict[str, Any]:
        name, address = str(self.cleaned_data.get("username", "")).casefold(), client_address(self.request)
        counted = ((FAILED_PAIR, f"{address} {name}"), (FAILED_NAME, name), (FAILED_ADDRESS, address))
        try:
            for limit, who in counted:
                limits.check(limit, who)
        except TooManyRequests as error:
            self.too_many = True
            raise forms.ValidationError(f"{error.message[:1].upper()}{error.message[1:]}.") from None
        try:
            cleaned: dict[str, Any] = super().clean()
        except forms.ValidationError:
            for limit, who in counted:
                limits.record(limit, who)
            raise
        limits.forget(*counted[0])
        return cleaned


class StaffSignInForm(LimitedTries, AdminAuthenticationForm):
    pass


class TokenForm(forms.Form):
    name = forms.CharField(max_length=100, label="Name")


class MemberForm(forms.Form):
    who = forms.CharField(max_length=254, label="User name or e-mail")
    role = forms.TypedChoiceField(choices=ROLE_CHOICES, coerce=Role, initial=Role.EDITOR, label="Role")


class RoleForm(forms.Form):
    role = forms.TypedChoiceField(choices=ROLE_CHOICES, coerce=Role, label="Role")
