package main

import (
	"vnic.dev/vnic/internal/hints"
	"vnic.dev/vnic/internal/job/allreduce"
	"vnic.dev/vnic/internal/job/load"
	"vnic.dev/vnic/internal/job/run"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/nic/sabotage"
)

// flagValues lists values of some flags, for shell completion and "did you mean".
var flagValues = map[string][]string{
	"nic":        {lab.Virtio, lab.GVE},
	"device":     {"virtio-net-pci", "vmxnet3", "e1000e"},
	"sandbox":    {"on", "log", "off"},
	"guest":      {"qemu", "inproc"},
	"mode":       {"devmem", "copy", "both"},
	"p2p":        {"on", "off"},
	"gateway":    {"nat", "isolated", "off"},
	"host-ports": {"all", "none"},
	"gpu-driver": {lab.DriverNode, lab.DriverVNICGPU},
	"family":     {"4", "6"},
	"end":        {"first-failure", "all"},
	"digest":     {run.DigestPieces, run.DigestSHA256},
	"format":     {load.Raw, load.Records, load.Safetensors},
	"op":         allreduce.Ops,
	"mr":         {"gpu", "ram", "odp"},
	"lab":        labfile.Presets(),
	"scale":      {"auto"},
	"allow-mac":  {"any"},
	"pause-at":   run.Stages,
	"sabotage":   append(faultNames(), "list"),
}

// openValues names flags that also take values that flagValues lacks: "did you mean" suggests none for them.
var openValues = map[string]bool{"host-ports": true, "lab": true, "scale": true, "allow-mac": true, "sabotage": true}

func faultNames() (names []string) {
	for _, f := range sabotage.Faults() {
		names = append(names, f.Name)
	}
	return names
}

var directoryFlags = map[string]bool{"log-dir": true, "modules": true, "headers": true, "cache": true, "log": true,
	"source": true,
	"tests":  true}

var values = hints.Values{Words: flagValues, Open: openValues, Directories: directoryFlags}
