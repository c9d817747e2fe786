package qemu

import "context"

// Fact is one thing that a machine has or lacks.
type Fact struct {
	Name  string `json:"name"`          // "qemu", "kernel", "kvm", "apt", "mirror", "keyring", "memory", "shm", "cache", "space"
	OK    bool   `json:"ok"`            // usable as it is
	Value string `json:"value"`         // what was found
	Fix   string `json:"fix,omitempty"` // what to do when not OK
}

// Report is what Doctor found.
type Report struct {
	Facts         []Fact `json:"facts"`
	Ready         bool   `json:"ready"`          // a run needs no download
	CanFetch      bool   `json:"can_fetch"`      // what is missing can be downloaded from here
	DownloadBytes int64  `json:"download_bytes"` // what the first run will download
	DiskBytes     int64  `json:"disk_bytes"`     // what it then needs in the cache
}

// Doctor looks at this machine. It changes nothing, starts no guest and needs no network.
func Doctor(ctx context.Context, o Options) *Report { return &Report{} }
