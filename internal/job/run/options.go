package run

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
	"vnic.dev/vnic/internal/wire/uplink"
)

// Options configure a run. Most are flags of `vnic run`.
type Options struct {
	session.Common
	// Impairment is that of each link, in each direction. With Lab the links have the file's; Take then raises Loss and
	// Reorder to the largest of the lab's links. Seed also determines the payload.
	lab.Impairment
	lab.NICOptions // for all NICs; with Lab the NICs have the file's

	NIC        string // a model (lab.LookupModel), or the first guest's, a comma and the second's; with Lab for Remodel
	BindQueues int    // number of receive queues that a receiver binds to GPU memory in mode devmem
	HoldTokens uint64 // in mode devmem: tokens that a receiver holds until no data has come for holdTime; 0: none
	Size       uint64 // bytes to transfer in each mode; with Rails, in each direction of each rail
	Modes      []string
	Family     int // 4 or 6
	Memory     uint64
	GPUMemory  uint64
	GPUDriver  string // lab.DriverNode (also "") or lab.DriverVNICGPU; with Lab for Remodel
	IOMMU      bool   // IOMMUs translate the NICs' addresses; unused with Lab, whose guests have their own setting
	P2P        bool
	Audit      bool
	// Lab describes the guests; nil: two guests without a lab file. Rails is how many NICs of each guest
	// transfer: NIC i of the first guest to NIC i of the second, with Bidir also back; 0: one transfer, without
	// a lab file.
	Lab   *labfile.Lab
	Rails int
	Bidir bool
	// Half is the guest of the lab on this host; "": both guests run here, and Do uses none of the next three fields. The
	// Uplinks lead to the other guest's host. Keeper is their uplink.Options.Keep. Do waits PeerSecs seconds for that host
	// (if that is the default, longer on slow machines).
	Half     string
	Uplinks  []uplink.Config
	Keeper   func(path string, dir bool) (remove func() error, err error)
	PeerSecs int
	// Scale is the factor by which links are slower than the lab says, or auto; "": the lab file's. If both
	// guests are here, and with Scale or a lab file's scale above 1, the run measures what part of its links'
	// rates each rail got (Share). With MustShare it is an error if a rail has no Share.OfRate.
	Scale     string
	MustShare bool
	Digest    string // DigestPieces or DigestSHA256
	Sabotage  string // a fault of the NICs, for sabotage.Parse; "": none
	Keep      bool   // keep the guests' consoles and the NICs' counters in files
	KeepDir   string // directory of these files; "": vnic-run- and the seed
	StallSecs int    // seconds without progress after which a transfer fails; if the default, longer on slow machines

	Progress func(mode string, done, total uint64) // called by one goroutine at a time; may be nil

	Recorder *Recorder // takes samples for a picture; nil: no picture

	hook   func(*runner) // tests: called before the guests boot; may be nil
	opened func(*runner) // tests: called after the stage setup; may be nil
}

// BrokerConfig returns the configuration of the broker, a process outside of the sandbox, which passes qemu.Commands to
// the QEMUs' monitors. mode becomes broker.Config.Mode.
func (o *Options) BrokerConfig(mode string) (broker.Config, error) {
	return broker.Config{Mode: mode, Monitor: qemu.Commands}, nil
}

// Defaults returns the options from which `vnic run` starts; Seed is 0.
func Defaults() Options {
	return Options{NIC: NICVirtio, BindQueues: 1, Size: 256 << 20, Modes: []string{transfer.Devmem, transfer.Copy},
		NICOptions: lab.NICOptions{MTU: 1500}, Family: 4, Memory: 512 << 20, GPUMemory: 512 << 20, P2P: true,
		StallSecs: int(limits.Stall / limits.Limit(time.Second)),
		PeerSecs:  int(limits.Host / limits.Limit(time.Second)), Digest: DigestPieces}
}

// Step describes a stage that begins.
type Step = session.Step

// Stages lists the stages in order. The last four come in each round of each mode.
var Stages = []string{"fetch", "gpu-memory", "boot", "setup", "prepare", "connect", "transfer", "verify"}

const (
	page      = 4096
	poolShare = 8 // the receiver's page pool is an eighth of its part of GPU memory, maxPool at most
	minPool   = 4 << 20
	maxPool   = 64 << 20
	leastRoom = minPool * poolShare // least usable GPU memory of an end of a transfer, in bytes
	basePort  = 5201
	maxBind   = 15 // a NIC has at most 16 queue pairs; one is not bound
	maxHold   = 1 << 32
	holdTime  = 3 // seconds without data after which held tokens are returned
)

// Check returns an error if the options are invalid, or contradict each other.
func (o *Options) Check() error {
	if err := session.Modes(o.Modes); err != nil {
		return err
	}
	if _, err := o.models(); err != nil {
		return err
	}
	switch {
	case o.XDP && o.InProc:
		return errors.New("--xdp and --guest inproc: XDP programs are of a guest's kernel, and there is none")
	case o.MaxMTU != 0 && o.InProc:
		return errors.New("--max-mtu and --guest inproc: no kernel is there to raise an MTU")
	case o.HoldTokens > maxHold:
		return fmt.Errorf("--hold-tokens %d: at most %d", o.HoldTokens, uint64(maxHold))
	case o.StallSecs < 1:
		return fmt.Errorf("--stall %d: at least 1 second", o.StallSecs)
	case o.Pause != "" && !slices.Contains(Stages, o.Pause):
		return fmt.Errorf("--pause-at %s: none of %s", o.Pause, strings.Join(Stages, ", "))
	}
	return cmp.Or(session.Number("--bind-queues", o.BindQueues, 1, maxBind),
		session.OneOf("--digest", o.Digest, DigestPieces, DigestSHA256), session.Family(o.Family, o.MTU),
		new(lab.Guest).CheckMachine(o.Memory, 1), o.Common.Check(),
		errors.Join(o.checkHalf(), o.checkScale()), o.checkLab())
}

// loss reports where segments may be lost: on links, to which the network between two hosts belongs; or else, with
// HoldTokens, at a receiver that lacks pages; or nowhere.
func (o *Options) loss() transfer.Loss {
	loss := session.LinkLoss(&o.Impairment, o.Lab)
	switch {
	case o.Half != "":
		return transfer.LinkLoss
	case loss == transfer.NoLoss && o.HoldTokens > 0:
		return transfer.PoolLoss
	}
	return loss
}

// patience returns how long a transfer may make no progress, and how long another operation, as connect, may take.
func (o *Options) patience() time.Duration {
	return limits.Stall.Unless(time.Duration(o.StallSecs) * time.Second)
}
