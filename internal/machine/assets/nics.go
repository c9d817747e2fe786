package assets

import "fmt"

// models are the NIC models, and the oldest QEMU for each. Package qemu checks what the models need
// of the guest's kernel.
var models = []struct{ nic, oldest string }{
	{"virtio", MinQEMU},
	{"gve", MinVFIOUser},
}

// nics adds the NIC models that a guest can have to Found. If the QEMU found is too old for a
// model, a newer one in the cache counts, as a run would use that.
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
