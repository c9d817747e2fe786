package control

// Buffer is a registered range of a GPU's memory, in whole 4 KiB pages.
type Buffer struct {
	ID   uint32 // offset 0: chosen by the NIC, from 1
	GPU  uint16 // 4
	Off  uint64 // 8
	Size uint64 // 16
}

const bufferLen = 24 // 6: two bytes, zero

func (f *Buffer) encode(b *[bufferLen]byte) {
	*b = [bufferLen]byte{}
	le.PutUint32(b[0:], f.ID)
	le.PutUint16(b[4:], f.GPU)
	le.PutUint64(b[8:], f.Off)
	le.PutUint64(b[16:], f.Size)
}

func (f *Buffer) decode(b *[bufferLen]byte) error {
	if !zero(b[6:8]) {
		return badData("buffer: reserved bytes not zero")
	}
	*f = Buffer{ID: le.Uint32(b[0:]), GPU: le.Uint16(b[4:]), Off: le.Uint64(b[8:]), Size: le.Uint64(b[16:])}
	return nil
}

// MaxBindQueues bounds the receive queues that a binding can name: numbers below it.
const MaxBindQueues = 256

// Binding ties receive queues, or transmission, to a buffer.
type Binding struct {
	ID     uint32   // offset 0: chosen by the NIC, from 1
	Buffer uint32   // 4
	Tx     bool     // 8: 0 or 1
	Queues []uint16 // 16: receive queues, as a bit map; none if Tx. Decoded in order, each once
}

const bindingLen = 16 + MaxBindQueues/8 // 9: seven bytes, zero

func (n *Binding) encode(b *[bindingLen]byte) error {
	*b = [bindingLen]byte{}
	le.PutUint32(b[0:], n.ID)
	le.PutUint32(b[4:], n.Buffer)
	b[8] = flag(n.Tx)
	for _, q := range n.Queues {
		if q >= MaxBindQueues {
			return badData("queue %d: not below %d", q, MaxBindQueues)
		}
		b[16+q/8] |= 1 << (q % 8)
	}
	return nil
}

func (n *Binding) decode(b *[bindingLen]byte) error {
	if b[8] > 1 || !zero(b[9:16]) {
		return badData("binding: tx %d, or reserved bytes not zero", b[8])
	}
	*n = Binding{ID: le.Uint32(b[0:]), Buffer: le.Uint32(b[4:]), Tx: b[8] == 1}
	for q := range uint16(MaxBindQueues) {
		if b[16+q/8]&(1<<(q%8)) != 0 {
			n.Queues = append(n.Queues, q)
		}
	}
	return nil
}
