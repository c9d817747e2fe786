package serve

import (
	"io"

	"vnic.dev/vnic/internal/report"
)

// capabilities is VHostUserBackendCapabilities of QEMU's docs/interop/vhost-user.json: type net has
// no other fields.
type capabilities struct {
	Type string `json:"type"`
}

// PrintCapabilities writes the output of --print-capabilities.
func PrintCapabilities(w io.Writer) error {
	return report.Encoder(w).Encode(capabilities{Type: "net"})
}

// BackendName is the program's name as a vhost-user backend. Under this name it needs no subcommand, because
// management software starts it with options only.
const BackendName = "vhost-user-vnic"

// PrintDescription writes a description of the program at binary, which management software finds as a
// file in a directory vhost-user: VhostUserBackend of QEMU's docs/interop/vhost-user.json.
func PrintDescription(w io.Writer, binary string) error {
	return report.Encoder(w).Encode(struct {
		Description string `json:"description"`
		Type        string `json:"type"`
		Binary      string `json:"binary"`
	}{"vnic: a virtio NIC with header split, beside a GPU", "net", binary})
}
