"""Routes of this app."""

from django.urls import path

from astraconsole.tenancy import views, views_device

urlpatterns = [
    path("", views.home, name="home"),
    path("sign-in", views.sign_in, name="sign_in"),
    path("sign-out", views.sign_out, name="sign_out"),
    path("device", views_device.device, name="device"),
    path("account/tokens", views.tokens, name="tokens"),
    path("account/tokens/<int:token_id>/revoke", views.revoke, name="token_revoke"),
    path("o/<slug:org>/w/<slug:ws>/members", views.members, name="members"),
    path("o/<slug:org>/w/<slug:ws>/members/<int:member_id>/role", views.member_role, name="member_role"),
    path("o/<slug:org>/w/<slug:ws>/members/<int:member_id>/remove", views.member_remove, name="member_remove"),
]
