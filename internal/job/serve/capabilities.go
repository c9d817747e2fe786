package serve

import (
	"io"

	"vnic.dev/vnic/internal/report"
)

// capabilities is VHostUserBackendCapabilities of QEMU's docs/interop/vhost-user.json.
type capabilities struct {
	Type string `json:"type"`
}

// PrintCapabilities prints the answer to --print-capabilities.
func PrintCapabilities(w io.Writer) error {
	return report.Encoder(w).Encode(capabilities{Type: "net"})
}

// BackendName is the program's name as a vhost-user backend. Management software starts it by this name, with
// options only.
const BackendName = "vhost-user-vnic"

// PrintDescription prints a VhostUserBackend of QEMU's docs/interop/vhost-user.json for the program at the path
// binary.
func PrintDescription(w io.Writer, binary string) error {
	return report.Encoder(w).Encode(struct {
		Description string `json:"description"`
		Type        string `json:"type"`
		Binary      string `json:"binary"`
	}{"vnic: a virtio NIC with header split, beside a GPU", "net", binary})
}
