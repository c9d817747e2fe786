package driver

import "errors"

type controlSender NIC

var errRingFull = errors.New("transmit ring full")

// Send implements control.Sender, on transmit queue 0. If the ring is full, it does not send the frame and returns
// errRingFull; the control client repeats the frame as long as its call waits for an answer.
func (s *controlSender) Send(frame []byte) error {
	n, err := (*NIC)(s).Transmit(0, []TxFrame{{Header: frame}})
	if err == nil && n == 0 {
		return errRingFull
	}
	return err
}
