"""Forms of accounts and members."""

from django import forms

from astraconsole.tenancy.permissions import Role

ROLES = [(role.value, role.value.capitalize()) for role in Role]


class TokenForm(forms.Form):
    name = forms.CharField(max_length=100, label="Name")


class MemberForm(forms.Form):
    who = forms.CharField(max_length=254, label="User name or e-mail")
    role = forms.TypedChoiceField(choices=ROLES, coerce=Role, initial=Role.EDITOR, label="Role")


class RoleForm(forms.Form):
    role = forms.TypedChoiceField(choices=ROLES, coerce=Role, label="Role")
