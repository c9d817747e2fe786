package assets

import "fmt"

// models are the device models of a NIC, and the QEMU that guests need for each. What their kernel must have package
// qemu looks at.
var models = []struct{ nic, oldest string }{
	{"virtio", MinQEMU},
	{"gve", MinVFIOUser},
}

// nics says which NICs a guest can have. A cached QEMU that is newer serves where that of a run
// which does not say is too old.
func (s *Survey) nics(have resolved) {
	for _, p := range models {
		version := s.QEMU.Version
		if cached := have[roleQEMU]; older(version, p.oldest) && cached != nil {
			version = upstream(cached.Version)
		}
		name := "nic " + p.nic
		switch {
		case version == "" || s.Kernel.Image == "":
			s.found(name, Worse, "not known before there are a QEMU and a guest kernel", "see above")
		case older(version, p.oldest):
			s.found(name, Worse, fmt.Sprintf("QEMU %s is older than %s", version, p.oldest),
				"the first run with --nic "+p.nic+" fetches a newer one")
		default:
			s.found(name, Good, fmt.Sprintf("QEMU %s, kernel %s", version, s.Kernel.Version), "")
		}
	}
}
