//! The keys of the live displays.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// The command of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyCommand {
    End,
    Pause,
    Sort,
    Help,
    Up,
    Down,
}

impl KeyCommand {
    pub(super) fn of(key: KeyEvent) -> Option<Self> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return (key.code == KeyCode::Char('c')).then_some(Self::End);
        }
        let named =
            [(KeyCode::Esc, Self::End), (KeyCode::Up, Self::Up), (KeyCode::Down, Self::Down)];
        if let Some((_, command)) = named.into_iter().find(|(code, _)| *code == key.code) {
            return Some(command);
        }
        match key.code.as_char()? {
            'q' => Some(Self::End),
            'p' | ' ' => Some(Self::Pause),
            's' => Some(Self::Sort),
            'k' => Some(Self::Up),
            'j' => Some(Self::Down),
            '?' | 'h' => Some(Self::Help),
            _ => None,
        }
    }
}

/// What is shown, and what the keys change of it.
pub(super) trait Shown<T> {
    /// Takes the result of a poll.
    fn take(&mut self, poll: T);
    /// Executes a command. Returns true to quit.
    fn execute(&mut self, command: KeyCommand) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode, modifiers: KeyModifiers) -> Option<KeyCommand> {
        KeyCommand::of(KeyEvent::new(code, modifiers))
    }

    #[test]
    fn keys_map_to_commands() {
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Some(KeyCommand::End));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(KeyCommand::End));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(key(KeyCode::Char('p'), KeyModifiers::CONTROL), None);
        assert_eq!(key(KeyCode::Char('?'), KeyModifiers::SHIFT), Some(KeyCommand::Help));
        assert_eq!(key(KeyCode::Char('s'), KeyModifiers::NONE), Some(KeyCommand::Sort));
        assert_eq!(key(KeyCode::Char('p'), KeyModifiers::NONE), Some(KeyCommand::Pause));
        assert_eq!(key(KeyCode::Down, KeyModifiers::NONE), Some(KeyCommand::Down));
    }
}
