package driver

import "errors"

// controlSender sends frames of the in-band control channel, on transmit queue 0.
type controlSender NIC

var errRingFull = errors.New("transmit ring full")

// Send implements control.Sender. It copies the frame. If the ring is full, the frame is lost, and
// the client repeats it.
func (s *controlSender) Send(frame []byte) error {
	n, err := (*NIC)(s).Transmit(0, []TxFrame{{Header: frame}})
	if err == nil && n == 0 {
		return errRingFull
	}
	return err
}
