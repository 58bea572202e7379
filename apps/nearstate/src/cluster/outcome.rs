//! What has become of a decision of an operator: which host owns the partition, and what was given
//! up.

use serde_json::Value;

use super::show::items;

/// The position at which a log ends, and the view in which it began.
fn end_of(done: &Value, [origin, position]: [&str; 2]) -> Option<(u64, u64)> {
    let number = |name: &str| done.get("loss")?.get(name)?.as_u64();
    number(position).map(|position| (number(origin).unwrap_or_default(), position))
}

fn shown((origin, position): (u64, u64)) -> String {
    format!("position {position} of the log of view {origin}")
}

fn not_compared(done: &Value) -> String {
    let silent: Vec<&str> = items(done, "silent").filter_map(Value::as_str).collect();
    if silent.is_empty() {
        return String::new();
    }
    format!("not compared, because they do not answer: {}\n", silent.join(", "))
}

/// A loss was accepted: at which position the partition goes on, and what is lost.
pub(super) fn accepted(to: &str, done: &Value) -> String {
    if done.get("by_decision") != Some(&Value::Bool(true)) {
        let compared = not_compared(done);
        return format!(
            "{to} owns the partition: the members have reported, and nothing is lost\n{compared}"
        );
    }
    let (longest, sealed) =
        (end_of(done, ["origin", "longest"]), end_of(done, ["sealed_origin", "sealed"]));
    let loss = match (longest, sealed) {
        (Some(longest), Some(sealed)) if longest == sealed => {
            format!("it goes on behind {}. No longer copy is known\n", shown(sealed))
        }
        (Some(longest), Some(sealed)) => format!(
            "given up: what is behind {}. The longest copy that is known ended at {}\n",
            shown(sealed),
            shown(longest)
        ),
        // A node of an earlier version does not say where the partition goes on.
        (Some(longest), None) => {
            format!("the longest copy that is known ended at {}\n", shown(longest))
        }
        (None, _) => String::new(),
    };
    format!("{to} owns the partition\n{loss}{}", not_compared(done))
}

/// A partition was begun anew at a host: with what, and what is lost.
pub(super) fn given_up(to: &str, done: &Value) -> String {
    let loss = match end_of(done, ["origin", "longest"]) {
        Some(longest) => format!(
            "given up: what other copies had. The longest one that is known ended at {}\n",
            shown(longest)
        ),
        None => "given up: what other copies had. The position of none is known\n".to_owned(),
    };
    format!("{to} owns the partition, with what its region has\n{loss}{}", not_compared(done))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_accepted_loss_is_told_with_the_positions_of_both_copies() {
        let loss = json!({ "origin": 3, "longest": 90, "sealed_origin": 3, "sealed": 70 });
        let done = json!({ "by_decision": true, "silent": ["a"], "loss": loss });
        assert_eq!(
            accepted("b", &done),
            "b owns the partition\n\
             given up: what is behind position 70 of the log of view 3. The longest copy that is \
             known ended at position 90 of the log of view 3\n\
             not compared, because they do not answer: a\n"
        );
        let loss = json!({ "origin": 3, "longest": 70, "sealed_origin": 3, "sealed": 70 });
        let done = json!({ "by_decision": true, "silent": [], "loss": loss });
        assert_eq!(
            accepted("b", &done),
            "b owns the partition\n\
             it goes on behind position 70 of the log of view 3. No longer copy is known\n"
        );
        // The members were faster. The last loss is an earlier one.
        let done = json!({ "by_decision": false, "silent": [], "loss": loss });
        let said = accepted("b", &done);
        assert!(said.ends_with("nothing is lost\n"), "{said}");
    }

    #[test]
    fn a_partition_that_begins_anew_is_told_with_the_longest_copy() {
        let loss = json!({ "origin": 3, "longest": 90, "sealed_origin": null, "sealed": null });
        let done = json!({ "by_decision": true, "silent": [], "loss": loss });
        let said = given_up("b", &done);
        assert!(said.ends_with("ended at position 90 of the log of view 3\n"), "{said}");
        let said = given_up("b", &json!({ "by_decision": true, "silent": ["a"], "loss": null }));
        assert!(said.contains("The position of none is known\nnot compared"), "{said}");
    }
}
