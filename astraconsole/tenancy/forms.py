"""Forms of accounts and members."""

from django import forms

from astraconsole.tenancy.permissions import ROLE_CHOICES, Role


class TokenForm(forms.Form):
    name = forms.CharField(max_length=100, label="Name")


class MemberForm(forms.Form):
    who = forms.CharField(max_length=254, label="User name or e-mail")
    role = forms.TypedChoiceField(choices=ROLE_CHOICES, coerce=Role, initial=Role.EDITOR, label="Role")


class RoleForm(forms.Form):
    role = forms.TypedChoiceField(choices=ROLE_CHOICES, coerce=Role, label="Role")
