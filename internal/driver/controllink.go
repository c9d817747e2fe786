package driver

import "errors"

type controlSender NIC

var errRingFull = errors.New("transmit ring full")

// Send implements control.Sender. With a full ring the frame is lost; the client repeats it.
func (s *controlSender) Send(frame []byte) error {
	n, err := (*NIC)(s).Transmit(0, []TxFrame{{Header: frame}})
	if err == nil && n == 0 {
		return errRingFull
	}
	return err
}
