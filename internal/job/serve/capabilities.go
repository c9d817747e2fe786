package serve

import (
	"encoding/json"
	"io"
)

// capabilities is VHostUserBackendCapabilities of QEMU's docs/interop/vhost-user.json: of type net
// there is nothing more to say.
type capabilities struct {
	Type string `json:"type"`
}

// PrintCapabilities writes what --print-capabilities is to say.
func PrintCapabilities(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(capabilities{Type: "net"})
}

// Description is VhostUserBackend of the same file: it tells management software of a backend.
type Description struct {
	Description string   `json:"description"`
	Type        string   `json:"type"`
	Binary      string   `json:"binary"`
	Tags        []string `json:"tags,omitempty"`
}

// BackendName is the name under which the program is a backend without a subcommand: management software starts it with
// options only.
const BackendName = "vhost-user-vnic"

// PrintDescription writes a description for the directory vhost-user, of a program at binary.
func PrintDescription(w io.Writer, binary string) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(Description{Description: "vnic: a virtio NIC with header split, beside a GPU", Type: "net",
		Binary: binary})
}
