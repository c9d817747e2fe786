package vhostuser

import (
	"fmt"
	"log/slog"
	"net"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/scm"
)

// unservedFeatures are never offered, even if the Device has them: this package does not implement them.
const unservedFeatures = FeatureLogAll | FeatureAccessPlatform | FeaturePacked

// session is one connection, used only by the goroutine of Serve.
type session struct {
	dev   Device
	space *dma.Space
	log   *slog.Logger
	conn  conn
	msg   message

	offered    ProtocolFeatures
	protocol   ProtocolFeatures // acked by the frontend
	features   uint64           // acked by the last SET_FEATURES that the device took, with bit 30 if it was acked
	haveFeats  bool             // Device.SetFeatures has succeeded since the start, the last RESET_DEVICE or status 0
	asked      bool             // the frontend sent GET_FEATURES
	accepted   bool             // the features of a SET_FEATURES were accepted, even if enabling the rings then failed
	unreached  bool             // a request was refused for an ErrMemory, and the regions have not changed since
	rings      []ring
	regions    []region
	backendReq int // channel for the Backend's requests, but it makes no requests; -1: no channel
	refusals   peer.Refusals
}

func newSession(b *Backend, sock *net.UnixConn) *session {
	s := &session{
		dev: b.dev, space: b.space, log: b.log, conn: newConn(sock),
		offered:    ProtocolFeatures(b.dev.ProtocolFeatures()) & SupportedProtocol,
		rings:      make([]ring, min(max(b.dev.MaxQueues(), 0), MaxVrings)),
		backendReq: -1,
		refusals:   peer.Refusals{Log: b.log, Protocol: "vhost-user"},
	}
	s.msg.fds.Discard = b.space.Discard
	peer.WatchMemory(b.space, sock, b.log)
	for i := range s.rings {
		s.rings[i] = newRing()
	}
	return s
}

func (s *session) end() {
	for i := range s.rings {
		if err := s.resetRing(i); err != nil {
			s.log.Warn("vhost-user queue did not stop well", "queue", i, "error", err)
		}
		scm.Close(s.rings[i].err)
	}
	s.dev.Disconnected()
	if err := s.space.Replace(nil); err != nil {
		s.log.Error("guest memory was not unmapped", "error", err)
	}
	peer.Unwatch(s.space)
	s.space.Discard(s.backendReq)
	s.backendReq = -1
	s.refusals.End()
}

func checkFDs(m *message, ru *rule) error {
	if n := uint32(m.fds.Len()); n < ru.fds.min || n > ru.fds.max {
		return fmt.Errorf("%v: %d descriptors, not %d to %d: %w", m.Request, n, ru.fds.min, ru.fds.max, ErrBadMessage)
	}
	return nil
}

func replyU64(v uint64) ([]byte, error) { return le.AppendUint64(nil, v), nil }

// u64 returns the payload "A single 64-bit integer".
func (m *message) u64() uint64 { return le.Uint64(m.body) }

func (s *session) setOwner(*message) ([]byte, error) { return nil, nil }

func (s *session) offeredFeatures() uint64 {
	return s.dev.Features()&^unservedFeatures | FeatureProtocol
}

func (s *session) getFeatures(*message) ([]byte, error) {
	s.asked = true
	return replyU64(s.offeredFeatures())
}

// offer describes the answers to GET_FEATURES and GET_QUEUE_NUM.
func (s *session) offer() string {
	queues := fmt.Sprintf("virtqueues: %d", len(s.rings))
	if c, ok := s.dev.(QueueCounter); ok {
		queues = fmt.Sprintf("queue pairs: %d", c.QueueNum())
	}
	return queues + "; features: " + s.named(s.offeredFeatures()).String()
}

func (s *session) named(bits uint64) Features {
	if n, ok := s.dev.(FeatureNamer); ok {
		return Features{bits, n.FeatureNames()}
	}
	return Features{bits, nil}
}

func (s *session) setFeatures(m *message) ([]byte, error) {
	f := m.u64()
	if extra := f &^ s.offeredFeatures(); extra != 0 {
		return nil, fmt.Errorf("SET_FEATURES: %v was not offered: take only what GET_FEATURES answers, %v: %w",
			s.named(extra), s.named(s.offeredFeatures()), ErrBadMessage)
	}
	if !s.haveFeats || f != s.features || !s.anyLive() {
		known := s.haveFeats && f == s.features
		err := s.whileAllPaused(func() error {
			err := s.dev.SetFeatures(f)
			if err == nil {
				s.features, s.haveFeats = f, true
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("SET_FEATURES %v: %w", s.named(f), err)
		}
		if !known {
			s.log.Info("vhost-user features negotiated", "features", s.named(f).String(), "protocol", s.protocol.String())
		}
	}
	s.accepted = true
	if f&FeatureProtocol != 0 {
		return nil, nil
	}
	// "Upon receiving a VHOST_USER_SET_FEATURES message from the front-end without
	// VHOST_USER_F_PROTOCOL_FEATURES set, the back-end must enable all rings immediately" ("Ring
	// states").
	return nil, s.enableAll(true)
}

func (s *session) getProtocolFeatures(*message) ([]byte, error) { return replyU64(uint64(s.offered)) }

func (s *session) setProtocolFeatures(m *message) ([]byte, error) {
	p := ProtocolFeatures(m.u64())
	if extra := p &^ s.offered; extra != 0 {
		return nil, fmt.Errorf("SET_PROTOCOL_FEATURES: %v was not offered: %w", extra, ErrBadMessage)
	}
	s.protocol = p
	return nil, nil
}

func (s *session) getQueueNum(*message) ([]byte, error) {
	if c, ok := s.dev.(QueueCounter); ok {
		return replyU64(c.QueueNum())
	}
	return replyU64(uint64(len(s.rings)))
}

// setBackendReqFD keeps the channel open, as the frontend watches it, until the next one comes or the connection
// ends.
func (s *session) setBackendReqFD(m *message) ([]byte, error) {
	s.space.Discard(s.backendReq)
	s.backendReq = m.fds.Take(0)
	return nil, nil
}

func (s *session) netSetMTU(m *message) ([]byte, error) {
	mtu := m.u64()
	if mtu < 68 || mtu > 65535 { // virtio 1.3, 5.1.4.1: the range of the field
		return nil, fmt.Errorf("NET_SET_MTU: %d is not in 68 to 65535", mtu)
	}
	return nil, peer.Wrap(s.dev.MTU(uint16(mtu)), "NET_SET_MTU %d", mtu)
}

// sendRARP: "The first 6 bytes of the payload contain the mac address of the guest".
func (s *session) sendRARP(m *message) ([]byte, error) {
	if a, ok := s.dev.(Announcer); ok {
		return nil, a.SendRARP([6]byte(m.body))
	}
	return nil, nil
}

// getConfig: "vhost-user back-end's payload size MUST match the front-end's request, vhost-user
// back-end uses zero length of payload to indicate an error": here one of the Device. A malformed request ends the
// connection.
func (s *session) getConfig(m *message) ([]byte, error) {
	head, data, err := decodeConfig(m.body)
	if err != nil {
		return nil, fmt.Errorf("GET_CONFIG: %w", err)
	}
	clear(data)
	if err := s.dev.GetConfig(head.Offset, data); err != nil {
		s.refused(m, err)
		return nil, nil
	}
	return m.body, nil
}

// setConfig: "back-ends MUST NOT accept SET_CONFIG for read-only configuration space fields unless the live
// migration bit is set". The Device has to refuse such fields; setConfig refuses that bit, and any other flag.
func (s *session) setConfig(m *message) ([]byte, error) {
	head, data, err := decodeConfig(m.body)
	if err != nil {
		return nil, fmt.Errorf("SET_CONFIG: %w", err)
	}
	if head.Flags != 0 {
		return nil, fmt.Errorf("SET_CONFIG: flags %#x: live migration is not supported", head.Flags)
	}
	return nil, peer.Wrap(s.dev.SetConfig(head.Offset, data), "SET_CONFIG [%d, +%d)", head.Offset, head.Size)
}

func (s *session) getStatus(*message) ([]byte, error) { return replyU64(uint64(s.dev.Status())) }

// setStatus stops the rings at status 0. Status 0 also resets the device (virtio 1.3, 4.1.4.3.1), but only if the
// protocol feature RESET_DEVICE was not negotiated: QEMU sends 0 also at QMP stop.
func (s *session) setStatus(m *message) ([]byte, error) {
	st := m.u64()
	if st > 0xff {
		return nil, fmt.Errorf("SET_STATUS: %#x is not a byte: %w", st, ErrBadMessage)
	}
	if st == 0 {
		for i := range s.rings {
			if err := s.stopRing(i); err != nil {
				s.refused(m, err)
			}
		}
		s.haveFeats = false
		if s.protocol&ProtocolResetDevice == 0 {
			if err := s.dev.Reset(); err != nil {
				return nil, fmt.Errorf("SET_STATUS 0: %w", err)
			}
		}
	}
	return nil, peer.Wrap(s.dev.SetStatus(uint8(st)), "SET_STATUS %#x", st)
}

// resetDevice: "disable all rings and reset all internal device state to the initial state".
func (s *session) resetDevice(m *message) ([]byte, error) {
	for i := range s.rings {
		if err := s.resetRing(i); err != nil {
			s.refused(m, err)
		}
	}
	s.haveFeats = false
	return nil, peer.Wrap(s.dev.Reset(), "RESET_DEVICE")
}

// resetOwner is deprecated: "It is recommended that back-ends either ignore this message, or use it to disable
// all rings". It is ignored while the acked features lack bit 30, as the frontend could not enable the rings again.
func (s *session) resetOwner(*message) ([]byte, error) {
	if s.haveFeats && s.features&FeatureProtocol == 0 {
		return nil, nil
	}
	return nil, peer.Wrap(s.enableAll(false), "RESET_OWNER")
}
