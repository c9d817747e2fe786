package vfiouser

import (
	"bytes"
	"encoding/json"
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
)

// The supported version (each minor version only adds to the previous one).
const (
	major = 0
	minor = 0
)

// maxVersionData is how many bytes the JSON of VERSION may have, with its NUL.
const maxVersionData = 64 << 10

// capabilities are the capabilities in VERSION's JSON that this end knows (vfio-user.rst, "VFIO_USER_VERSION").
type capabilities struct {
	MaxMsgFDs       *uint64 `json:"max_msg_fds,omitempty"`
	MaxDataXferSize *uint64 `json:"max_data_xfer_size,omitempty"`
	MaxDMAMaps      *uint64 `json:"max_dma_maps,omitempty"`
	PgSizes         *uint64 `json:"pgsizes,omitempty"`
	WriteMultiple   *bool   `json:"write_multiple,omitempty"`
}

// versionData is VERSION's JSON; other names in it are ignored.
type versionData struct {
	Capabilities capabilities `json:"capabilities"`
}

// decodeVersion decodes VERSION; hasData reports whether it contains JSON.
func decodeVersion(b []byte) (gotMajor, gotMinor uint16, data versionData, hasData bool, err error) {
	gotMajor, gotMinor = le.Uint16(b[0:]), le.Uint16(b[2:])
	text := b[versionLen:]
	if len(text) == 0 {
		return gotMajor, gotMinor, data, false, nil
	}
	// The data must end with its only NUL: "including terminating NUL".
	if end := bytes.IndexByte(text, 0); end != len(text)-1 {
		return gotMajor, gotMinor, data, false, fmt.Errorf("version data of %d bytes does not end with a NUL: %w", len(text),
			ErrBadMessage)
	}
	if err := json.Unmarshal(text[:len(text)-1], &data); err != nil {
		return gotMajor, gotMinor, data, false, fmt.Errorf("version data: %w: %w", err, ErrBadMessage)
	}
	return gotMajor, gotMinor, data, true, nil
}

// answer returns the capabilities for the reply to a client that proposes c, with numbers no larger than this end's
// limits: "The capability list must be a subset of those proposed".
func (c *capabilities) answer() capabilities {
	least := func(p *uint64, ours uint64) *uint64 {
		if p == nil {
			return nil
		}
		n := min(*p, ours)
		return &n
	}
	return capabilities{
		MaxMsgFDs:       least(c.MaxMsgFDs, MaxFDs),
		MaxDataXferSize: least(c.MaxDataXferSize, MaxTransfer),
		MaxDMAMaps:      least(c.MaxDMAMaps, dma.MaxRegions),
		PgSizes:         pages(c.PgSizes),
		WriteMultiple:   c.WriteMultiple,
	}
}

// pages returns the proposed page sizes that DMA_MAP accepts, or nil if there are none. Without pgsizes in the JSON the
// protocol's default holds, 4 KiB.
func pages(proposed *uint64) *uint64 {
	if proposed == nil || *proposed&^(pageSize-1) == 0 {
		return nil
	}
	n := *proposed &^ (pageSize - 1)
	return &n
}

// version returns ErrBadMessage, which ends the connection, for bad data and for another major version: the server
// "closes the connection if it cannot support the advertised version". A second VERSION is EINVAL.
func (s *session) version(m *message) error {
	if s.negotiated {
		return fmt.Errorf("once more: %w", unix.EINVAL)
	}
	theirMajor, theirMinor, data, hasData, err := decodeVersion(m.body)
	if err != nil {
		return err
	}
	if theirMajor != major {
		return fmt.Errorf("the client speaks %d.%d, not %d: %w", theirMajor, theirMinor, major, ErrBadMessage)
	}
	s.out = le.AppendUint16(s.out, major)
	s.out = le.AppendUint16(s.out, min(theirMinor, minor))
	if hasData {
		text, err := json.Marshal(versionData{data.Capabilities.answer()})
		if err != nil {
			return err
		}
		s.out = append(append(s.out, text...), 0)
	}
	s.negotiated = true
	s.log.Info("vfio-user client connected", "version", fmt.Sprintf("%d.%d", theirMajor, theirMinor))
	return nil
}
