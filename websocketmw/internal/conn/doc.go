// Package conn guards one connection: what is read and written, how much of it, how long it may be
// silent, slow or old, and how it is closed. It knows no other socket, no slot and no store but
// those of its limits. What happens goes to an [Owner].
//
// A handler's connection is a [Conn], which Serve puts around the server's. Its [Life] outlives it:
// it has only a weak pointer to the Conn, so a Conn that a handler drops is collected and closed.
//
// Locks, from the outermost: the writer's, which orders what is written; the sender's, of what is
// not sent yet; the Life's. When an Owner is told of an Event, none of them is held but the writer's:
// a write may find that the client reads too slowly.
package conn
