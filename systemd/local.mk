# systemd/: what a service manager and a firewall need. Built by sed, not by configure, because
# sysconfdir and sbindir are only final in make (GNU standards: make prefix=... install).
systemdsystemunit_DATA = systemd/commd.service
sysusersdir = $(prefix)/lib/sysusers.d
sysusers_DATA = systemd/sysusers.d/commd.conf
tmpfilesdir = $(prefix)/lib/tmpfiles.d
tmpfiles_DATA = systemd/tmpfiles.d/commd.conf
nftdir = $(datadir)/commd
dist_nft_DATA = systemd/commd.nft

EXTRA_DIST += systemd/commd.service.in systemd/commd.sysusers systemd/commd.tmpfiles
CLEANFILES += systemd/commd.service systemd/sysusers.d/commd.conf systemd/tmpfiles.d/commd.conf

# [@]: config.status must not replace the pattern itself
systemd_subst = $(SED) -e 's|[@]sbindir[@]|$(sbindir)|g' -e 's|[@]sysconfdir[@]|$(sysconfdir)|g'

systemd/commd.service: $(srcdir)/systemd/commd.service.in Makefile
	$(AM_V_GEN)$(MKDIR_P) systemd && \
	    $(systemd_subst) $(srcdir)/systemd/commd.service.in >$@.tmp && mv $@.tmp $@
systemd/sysusers.d/commd.conf: $(srcdir)/systemd/commd.sysusers Makefile
	$(AM_V_GEN)$(MKDIR_P) systemd/sysusers.d && \
	    $(systemd_subst) $(srcdir)/systemd/commd.sysusers >$@.tmp && mv $@.tmp $@
systemd/tmpfiles.d/commd.conf: $(srcdir)/systemd/commd.tmpfiles Makefile
	$(AM_V_GEN)$(MKDIR_P) systemd/tmpfiles.d && \
	    $(systemd_subst) $(srcdir)/systemd/commd.tmpfiles >$@.tmp && mv $@.tmp $@
