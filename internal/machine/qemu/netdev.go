package qemu

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/limits"
)

// Netdev is a network device with a backend in this process (Connected) or elsewhere (Path): a
// virtio-net-pci, or a vfio-user-pci.
type Netdev struct {
	// Connected receives, and then owns, QEMU's connection. A goroutine of Start calls it at most once; it must not wait
	// for the guest.
	Connected func(conn *net.UnixConn)
	Path      string // of the socket to the backend; "" with Connected
	Listens   bool   // QEMU listens at Path and waits for the backend; vhost-user only
	VFIOUser  bool   // a vfio-user-pci, not a virtio-net-pci; needs QEMU 10.1 or newer
	Place     string // name of an endpoint in Config.Tree; "": none
	Hotplug   bool   // UnplugNIC can remove it; needs a Place in a Tree, and no VFIOUser

	// For a virtio-net-pci; a vfio-user-pci ignores these.
	Queues  int              // queue pairs; 0 = 1
	MAC     net.HardwareAddr // nil = QEMU's default
	MTU     int              // host_mtu; 0 = none
	XDP     bool             // without receive offloads, for XDP programs
	Options string           // of the device, as "packed=on"

	abstract string   // name of Connected's abstract socket, for vhost-user
	socket   *os.File // Connected's socket, for vfio-user
}

// Args returns the arguments for a device with a Path, for a QEMU that another program starts. QEMU's names for the
// device and its parts contain id.
func (n Netdev) Args(id string) []string { return n.args(id, nil, "") }

// args returns the device's arguments. f may be nil with a Path. on is a result of Config.on.
func (n *Netdev) args(id string, f *files, on string) []string {
	if n.VFIOUser {
		return []string{"-device", vfioUser(id, n, f, on)}
	}
	chardev := fmt.Sprintf("socket,id=%s,path=%s,", id, comma(cmp.Or(n.abstract, n.Path)))
	switch {
	case n.abstract != "":
		chardev += "abstract=on"
	case n.Listens:
		chardev += "server=on"
	default:
		chardev += "reconnect-ms=1000"
	}
	queues := cmp.Or(n.Queues, 1)
	return []string{"-chardev", chardev, "-netdev", fmt.Sprintf("vhost-user,id=%s,chardev=%s,queues=%d", id, id, queues),
		"-device", netDevice(id, queues, n, on)}
}

// guestOffloads stops the driver from changing receive offloads later (VIRTIO_NET_F_CTRL_GUEST_OFFLOADS):
// QEMU handles that command itself, and vhost-user has no message for it. Without the feature Linux refuses
// XDP programs if there are receive offloads (drivers/net/virtio_net.c, virtnet_xdp_set).
const guestOffloads = "ctrl_guest_offloads=off"

// noGuestOffloads disables receive offloads, so virtnet_xdp_set accepts programs.
const noGuestOffloads = "guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,guest_uso4=off," +
	"guest_uso6=off"

// netDevice returns the -device argument of a modern virtio-net-pci: two vectors for each queue pair, one for
// control, one for configuration changes; no boot ROM.
func netDevice(id string, queues int, n *Netdev, on string) string {
	s := fmt.Sprintf("virtio-net-pci,id=dev-%s,netdev=%s,disable-legacy=on,mq=%s,vectors=%d,"+
		"rx_queue_size=1024,tx_queue_size=1024,%s,romfile=", id, id, onOff(queues > 1), 2*queues+2, guestOffloads) + on
	if n.MAC != nil {
		s += ",mac=" + n.MAC.String()
	}
	if n.MTU != 0 {
		s += ",host_mtu=" + strconv.Itoa(n.MTU)
	}
	if n.XDP {
		s += "," + noGuestOffloads
	}
	if n.Options != "" {
		s += "," + n.Options
	}
	return s
}

// vfioUser returns the -device argument of a vfio-user-pci. It is JSON, because the device's socket is an object with
// a path (hw/vfio-user/pci.c, vfio_user_pci_realize).
func vfioUser(id string, n *Netdev, f *files, on string) string {
	path := n.Path
	if n.socket != nil {
		path = fdPath(f.add(n.socket))
	}
	device := map[string]any{"driver": "vfio-user-pci", "id": "dev-" + id,
		"socket": map[string]string{"type": "unix", "path": path}}
	if bus, there := strings.CutPrefix(on, ",bus="); there {
		device["bus"] = bus
	}
	if limits.Slow() > 1 {
		device["x-msg-timeout"] = limits.QEMUReply.Here().Milliseconds()
	}
	b, _ := json.Marshal(device)
	return string(b)
}
