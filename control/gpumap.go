package control

import "context"

// GPUMap says that a GPU's memory, from Off on, lies in the guest's address space: how a guest that got it as ordinary
// memory, on a NUMA node, finds out which of it is where in the GPU.
type GPUMap struct {
	ID   uint32 // offset 0: place in the list, from 1
	GPU  uint16 // 4
	IOVA uint64 // 8
	Off  uint64 // 16
	Size uint64 // 24
}

const gpuMapLen = 32 // 6: two bytes, zero

func (m *GPUMap) encode(b *[gpuMapLen]byte) {
	*b = [gpuMapLen]byte{}
	le.PutUint32(b[0:], m.ID)
	le.PutUint16(b[4:], m.GPU)
	le.PutUint64(b[8:], m.IOVA)
	le.PutUint64(b[16:], m.Off)
	le.PutUint64(b[24:], m.Size)
}

func (m *GPUMap) decode(b *[gpuMapLen]byte) error {
	if !zero(b[6:8]) {
		return badData("GPU map: reserved bytes not zero")
	}
	*m = GPUMap{ID: le.Uint32(b[0:]), GPU: le.Uint16(b[4:]), IOVA: le.Uint64(b[8:]), Off: le.Uint64(b[16:]), Size: le.Uint64(b[24:])}
	return nil
}

func putGPUMap(b []byte, m *GPUMap) ([]byte, error) { return put(b, m.encode), nil }
func getGPUMap(b []byte, m *GPUMap) error           { return get(b, m.decode) }

// GPUMaps lists where in the guest's address space the memory of GPUs lies.
func (c *Client) GPUMaps(ctx context.Context) ([]GPUMap, error) {
	return lists(ctx, c, ClassGPU, GPUMapList, gpuMapLen, getGPUMap, func(m *GPUMap) uint32 { return m.ID })
}
