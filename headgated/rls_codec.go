package headgated

import (
	"crypto/sha256"
	"encoding/hex"
	"unicode/utf8"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is embedded
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// A message is a request, or what is wrong with it.
type message struct {
	request pb.RateLimitRequest
	fault   error
}

// A codec is that of protobuf, which also takes values of entries that are not UTF-8. Envoy sends header fields as
// clients write them, and would go by its failure mode if they were refused: then a byte gets around all limits.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Unmarshal implements [encoding.CodecV2]. A message has its own fault.
func (c codec) Unmarshal(data mem.BufferSlice, into any) error {
	m, ok := into.(*message)
	switch {
	case !ok:
		return c.CodecV2.Unmarshal(data, into)
	case data.Len() > maxBody:
		m.fault = invalid("the message has more than %d bytes", maxBody)
		return nil
	case c.CodecV2.Unmarshal(data, &m.request) == nil:
		return nil
	}
	const descriptors, entries, value = 2, 1, 2 // the numbers of fields
	text, err := mended(data.Materialize(), descriptors, entries, value)
	if err != nil || proto.Unmarshal(text, &m.request) != nil {
		m.fault = invalid("the message is no RateLimitRequest")
	}
	return nil
}

// mended returns an encoded message in which the strings at a path of fields are UTF-8. One that is not becomes
// its hash, behind a zero, which no header field has: so none is another.
func mended(message []byte, field protowire.Number, path ...protowire.Number) (to []byte, err error) {
	err = eachField(message, func(number protowire.Number, kind protowire.Type, value []byte) error {
		to = protowire.AppendTag(to, number, kind)
		if number != field || kind != protowire.BytesType {
			to = append(to, value...)
			return nil
		}
		inner, _ := protowire.ConsumeBytes(value)
		if len(path) > 0 {
			if inner, err = mended(inner, path[0], path[1:]...); err != nil {
				return err
			}
		} else if !utf8.Valid(inner) {
			sum := sha256.Sum256(inner)
			inner = append([]byte{0}, hex.EncodeToString(sum[:])...)
		}
		to = protowire.AppendBytes(to, inner)
		return nil
	})
	return to, err
}
