package headgated

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The multiplier is read and written by descriptions of messages that have the field, as by those that do not.
func TestMultiplierIsKnown(t *testing.T) {
	message := func(name string, number int32) *descriptorpb.DescriptorProto {
		return &descriptorpb.DescriptorProto{Name: proto.String(name), Field: []*descriptorpb.FieldDescriptorProto{{
			Name: proto.String("unit_multiplier"), Number: proto.Int32(number), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: proto.String(".google.protobuf.UInt32Value"),
		}}}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("newer.proto"), Syntax: proto.String("proto3"), Dependency: []string{wrapperspb.File_google_protobuf_wrappers_proto.Path()},
		MessageType: []*descriptorpb.DescriptorProto{message("Override", 3), message("Limit", 4)},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	override, limit := dynamicpb.NewMessage(file.Messages().Get(0)), dynamicpb.NewMessage(file.Messages().Get(1))
	if n, err := multiplier(override, ofOverride); n != 1 || err != nil {
		t.Errorf("without the field: %d, %v", n, err)
	}
	override.Set(override.Descriptor().Fields().Get(0), protoreflect.ValueOfMessage(wrapperspb.UInt32(30).ProtoReflect()))
	if n, err := multiplier(override, ofOverride); n != 30 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	override.Set(override.Descriptor().Fields().Get(0), protoreflect.ValueOfMessage(wrapperspb.UInt32(0).ProtoReflect()))
	if n, err := multiplier(override, ofOverride); err == nil {
		t.Errorf("0 is taken as %d", n)
	}
	setMultiplier(limit, ofLimit, 30)
	if text, unknown := limit.String(), limit.GetUnknown(); len(unknown) > 0 || !limit.Has(limit.Descriptor().Fields().Get(0)) {
		t.Errorf("%s, %x", text, unknown)
	}
}
