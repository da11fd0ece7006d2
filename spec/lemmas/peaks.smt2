; Peaks. Only steps that take memory need a row: after a computation there is no more than during it,
; and a free or a hostfree adds nothing.
; Used: events.Event.takes, memory.encode_memory.

(push 1) ; a computation: results that are there already are dropped, others were counted
(declare-const alive Bool) (declare-const kind Int) (declare-const nosave Bool) (declare-const size Int)
(assert (! (<= 0 size) :named not_negative))
(assert (not (<= (change alive (make.alive kind nosave) size) size)))
(check-sat)
(pop 1)

(push 1) ; free, and the end of a name
(declare-const alive Bool) (declare-const kind Int) (declare-const size Int)
(assert (! (<= 0 size) :named not_negative))
(assert (not (and (<= (change alive (free.alive alive kind) size) 0)
                  (<= (change alive end.alive size) 0))))
(check-sat)
(pop 1)

(push 1) ; an accumulation, or an update on the device, moves a storage from one name to the other: no byte is taken
(declare-const alive Bool) (declare-const named Bool)
(declare-const size Int) (declare-const size2 Int) (declare-const flying2 Bool)
(assert (! (= size size2) :named one_size))
(assert (! alive :named read))
(assert (! (become.ok named flying2) :named become_guard))
(assert (not (= 0 (+ (change alive end.alive size) (change named become.alive size2)))))
(check-sat)
(pop 1)

(push 1) ; so does an update on the host, there
(declare-const hosted Bool) (declare-const aged Bool) (declare-const flying Bool)
(declare-const alive Bool) (declare-const named Bool) (declare-const flying2 Bool)
(declare-const size Int) (declare-const size2 Int)
(assert (! (= size size2) :named one_size))
(assert (! (look.ok hosted aged flying) :named old_guard))
(assert (! (new.ok alive flying2 named) :named new_guard))
(assert (not (= 0 (+ (change hosted old.hosted size) (change named new.hosted size2)))))
(check-sat)
(pop 1)
