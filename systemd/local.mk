# systemd/: what a service manager and a firewall need. Built by sed, not by configure, because
# sysconfdir and sbindir are only final in make (GNU standards: make prefix=... install).
nodist_systemdsystemunit_DATA = systemd/commd.service systemd/commd-engine.service \
	systemd/commd-gpu.service
dist_systemdsystemunit_DATA = systemd/commd-engine.socket systemd/commd-gpu.socket
sysusersdir = $(prefix)/lib/sysusers.d
sysusers_DATA = systemd/sysusers.d/commd.conf systemd/sysusers.d/commd-gpu.conf
tmpfilesdir = $(prefix)/lib/tmpfiles.d
tmpfiles_DATA = systemd/tmpfiles.d/commd.conf
nftdir = $(datadir)/commd
dist_nft_DATA = systemd/commd.nft

EXTRA_DIST += systemd/commd.service.in systemd/commd-engine.service.in \
	systemd/commd-gpu.service.in systemd/commd.sysusers systemd/commd-gpu.sysusers \
	systemd/commd.tmpfiles
CLEANFILES += systemd/commd.service systemd/commd-engine.service systemd/commd-gpu.service \
	systemd/sysusers.d/commd.conf systemd/sysusers.d/commd-gpu.conf systemd/tmpfiles.d/commd.conf

# [@]: config.status must not replace the pattern itself
systemd_subst = $(SED) -e 's|[@]sbindir[@]|$(sbindir)|g' -e 's|[@]libexecdir[@]|$(libexecdir)|g' \
	-e 's|[@]sysconfdir[@]|$(sysconfdir)|g' -e 's|[@]bindir[@]|$(bindir)|g'

systemd/commd.service: $(srcdir)/systemd/commd.service.in Makefile
	$(AM_V_GEN)$(MKDIR_P) systemd && \
	    $(systemd_subst) $(srcdir)/systemd/commd.service.in >$@.tmp && mv $@.tmp $@
systemd/commd-engine.service: $(srcdir)/systemd/commd-engine.service.in Makefile
	$(AM_V_GEN)$(MKDIR_P) systemd && \
	    $(systemd_subst) $(srcdir)/systemd/commd-engine.service.in >$@.tmp && mv $@.tmp $@
systemd/commd-gpu.service: $(srcdir)/systemd/commd-gpu.service.in Makefile
	$(AM_V_GEN)$(MKDIR_P) systemd && \
	    $(systemd_subst) $(srcdir)/systemd/commd-gpu.service.in >$@.tmp && mv $@.tmp $@
systemd/sysusers.d/commd-gpu.conf: $(srcdir)/systemd/commd-gpu.sysusers Makefile
	$(AM_V_GEN)$(MKDIR_P) systemd/sysusers.d && \
	    $(systemd_subst) $(srcdir)/systemd/commd-gpu.sysusers >$@.tmp && mv $@.tmp $@
systemd/sysusers.d/commd.conf: $(srcdir)/systemd/commd.sysusers Makefile
	$(AM_V_GEN)$(MKDIR_P) systemd/sysusers.d && \
	    $(systemd_subst) $(srcdir)/systemd/commd.sysusers >$@.tmp && mv $@.tmp $@
systemd/tmpfiles.d/commd.conf: $(srcdir)/systemd/commd.tmpfiles Makefile
	$(AM_V_GEN)$(MKDIR_P) systemd/tmpfiles.d && \
	    $(systemd_subst) $(srcdir)/systemd/commd.tmpfiles >$@.tmp && mv $@.tmp $@
