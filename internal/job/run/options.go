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

// Options are the flags of `vnic run`.
type Options struct {
	session.Common
	lab.Impairment // of the link, in each direction; its Seed is also the payload's seed
	lab.NICOptions // for all NICs

	NIC        string // a model for both guests (lab.LookupModel); or the sender's model, a comma and the receiver's
	BindQueues int    // receive queues that the receiver binds to GPU memory in mode devmem
	HoldTokens uint64 // in mode devmem: most tokens that the receiver holds back until no more data comes; 0: none
	Size       uint64 // bytes to transfer, in each mode
	Modes      []string
	Family     int // 4 or 6
	Memory     uint64
	GPUMemory  uint64
	GPUDriver  string // lab.DriverNode or lab.DriverVNICGPU; with a Lab the lab's guests have their own
	IOMMU      bool   // the IOMMU of each guest translates the addresses that NICs use; with a Lab, Lab.Guests decide
	P2P        bool
	Audit      bool
	// Lab, if it is not nil, describes the guests. Rails is how many NICs of each guest transfer: NIC
	// i of the first guest to NIC i of the second, with Bidir also back. Rails is 0 for one transfer
	// without a lab file.
	Lab   *labfile.Lab
	Rails int
	Bidir bool
	// Half names the guest of the lab that runs on this host. The other guest runs on another host,
	// which the Uplinks reach. If Half is "", both guests run here, and Services has the lab's
	// uplinks. Keeper is uplink.Options.Keep. PeerSecs is how many seconds the run waits for the other
	// host.
	Half     string
	Uplinks  []uplink.Config
	Keeper   func(path string, dir bool) (remove func() error, err error)
	PeerSecs int
	// Scale is the factor by which links are slower than the lab says, or auto; "": the lab file's
	// factor. If Scale or the lab file's factor is set, the run measures shares of links' rates; with
	// MustShare a rail without a share is an error.
	Scale     string
	MustShare bool
	Digest    string // DigestPieces or DigestSHA256
	Sabotage  string // a fault of the NICs, in the syntax of sabotage.Parse; "": none
	Keep      bool   // keep the guests' console output and the NICs' counters in files
	KeepDir   string // the directory of these files; "": vnic-run- and the seed, in the working directory
	StallSecs int    // seconds without progress after which a transfer fails

	Progress func(mode string, done, total uint64) // called during a transfer, by one goroutine at a time; may be nil

	Recorder *Recorder // takes samples for a picture; nil: no picture

	hook   func(*runner) // tests: called before the guests boot
	opened func(*runner) // tests: called after the stage setup
}

// BrokerConfig returns the configuration of this command's broker, the process outside of the
// sandbox: it passes commands to the QEMUs' monitors. There is no gateway.
func (o *Options) BrokerConfig(mode string) (broker.Config, error) {
	return broker.Config{Mode: mode, Monitor: qemu.Commands}, nil
}

// Defaults returns the options of `vnic run` without flags, except that Seed is 0.
func Defaults() Options {
	return Options{NIC: NICVirtio, BindQueues: 1, Size: 256 << 20, Modes: []string{transfer.Devmem, transfer.Copy},
		NICOptions: lab.NICOptions{MTU: 1500}, Family: 4, Memory: 512 << 20, GPUMemory: 512 << 20, P2P: true,
		StallSecs: int(limits.Stall / limits.Limit(time.Second)),
		PeerSecs:  int(limits.Host / limits.Limit(time.Second)), Digest: DigestPieces}
}

// Step describes a stage that begins. The last four of Stages come once for each round of each mode.
type Step = session.Step

// Stages lists the stages in order, as users see them. Tests interrupt the command in each.
var Stages = []string{"fetch", "gpu-memory", "boot", "setup", "prepare", "connect", "transfer", "verify"}

const (
	page      = 4096
	poolShare = 8 // the receiver's page pool is an eighth of its part of GPU memory, maxPool at most
	minPool   = 4 << 20
	maxPool   = 64 << 20
	leastRoom = minPool * poolShare // the least GPU memory of an end of a transfer
	basePort  = 5201
	maxBind   = 15 // a NIC has 16 queue pairs at most
	maxHold   = 1 << 32
	holdTime  = 3 // seconds without data after which the receiver returns the tokens that it holds
)

// Check returns an error that names what is wrong with the options.
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

// loss reports where segments may be lost. With Half it assumes that the network between the hosts may lose some.
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

// patience returns how long an operation may show no progress before the run fails.
func (o *Options) patience() time.Duration {
	return limits.Stall.Unless(time.Duration(o.StallSecs) * time.Second)
}
